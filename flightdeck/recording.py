"""Recordings of a fleet: what the feed brought and what the database answered, line by line. No terminal, no database.

A file of JSON lines, gzip-compressed when its name ends in ``.gz``. The first line says what it is::

    {"flightdeck": "recording", "version": 1, "at": "<wall clock, UTC>", "store": "fleet@db", "columns": {...}}

Every other line begins with ``t``, seconds since the recording began, and is one update of the feed or one answer::

    {"t": 12.031, "link": [state, at, error, next_try_s, lost_s, listening], "view"|"change": {...}, "samples": [...], "hour": {...}}
    {"t": 15.5, "ask": "job", "with": {"job_id": "7"}, "say": {...}, "error": ""}

Times inside are whole microseconds of the epoch. A sample is a row of values in the order that ``columns`` gives, so that
columns may come and go. ``view`` stands in full once a minute, in between only what is different (``change``); the ages of
a box count from its own ``at``, those of one that has none (older recordings) from the view's. A line that cannot be read is
skipped and counted; the last one may be cut off.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from engine.errors import BadInput
from engine.feed import FeedUpdate
from engine.snapshot import jsonable
from engine.telemetry.sample import BOX_METRICS, GPU_METRICS, BoxSample
from flightdeck.reader import Key, question_key
from flightdeck.recorded import Row, apply, canonical, difference, instant, micros, number, pack, unpack
from flightdeck.spool import Entry, Lines

VERSION = 1
FULL_VIEW_S = 60.0
FLUSH_S = 2.0  # a crash costs a compressed recording at most so much
KEPT_S = 3900.0  # a little more than the hour that a deck remembers
LONGEST_LINE = 256 * 2**20
LONGEST_S = 3.2e8  # ten years; no calendar bears what a garbled line may say
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Said:
    """What the database answered to one question. ``value`` None where ``error`` says why there is none."""

    name: str
    arguments: Row
    value: Any
    error: str = ""


@dataclass(frozen=True)
class Header:
    at: datetime  # the recorder's own clock when ``t`` was 0
    store: str
    box_columns: tuple[str, ...] = BOX_METRICS
    gpu_columns: tuple[str, ...] = GPU_METRICS


# -- writing


class Writer:
    """Appends to one file; may be called from several threads. The clock starts with the first line."""

    def __init__(self, path: Path, store: str, at: datetime | None = None, overwrite: bool = False) -> None:
        """Raises FileExistsError and other OSError."""
        self._lock = threading.Lock()
        self._raw: IO[bytes] = path.open("wb" if overwrite else "xb")
        self._gzip: gzip.GzipFile | None = None
        if path.name.endswith(".gz"):
            self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, compresslevel=6, mtime=0)
        self._start: float | None = None
        self._flushed = time.monotonic()
        self._view: Row | None = None
        self._view_t = -math.inf
        self._said: dict[tuple[str, str], bytes] = {}
        self.lines = 0
        self.last_t = 0.0
        head = {
            "flightdeck": "recording",
            "version": VERSION,
            "at": (at or datetime.now(UTC)).astimezone(UTC).isoformat(),
            "store": store,
            "columns": {"box": BOX_METRICS, "gpu": GPU_METRICS},
        }
        self._line(head)

    def update(self, update: FeedUpdate) -> None:
        """One update of the feed. Raises OSError. A recording begins with the first that says something."""
        if update.state == "connecting" and self._start is None:
            return
        with self._lock:
            t = self._time(update.mono)
            lost_s = None if update.lost_since_mono is None else round(update.mono - update.lost_since_mono, 6)
            link = [update.state, micros(update.at), update.error, update.next_try_s, lost_s, update.listening]
            row: Row = {"t": t, "link": link}
            if update.view is not None:
                view = jsonable(update.view)
                due = self._view is None or t - self._view_t >= FULL_VIEW_S
                change = None if due or self._view is None else difference(self._view, view)
                if change is None:
                    row["view"], self._view_t = view, t
                else:
                    row["change"] = change
                self._view = view
            if update.samples:
                row["samples"] = [pack(sample) for sample in update.samples]
            if update.history is not None:
                row["hour"] = {box: [pack(sample) for sample in rows] for box, rows in update.history.items()}
            self._line(row)

    def answer(self, said: Said, mono: float) -> None:
        """One answer; the same answer again is not written. Raises OSError."""
        with self._lock:
            if self._start is None:
                return  # before the first update there is nothing to show it beside
            key = (said.name, canonical(said.arguments))
            digest = hashlib.blake2b(canonical([said.value, said.error]).encode()).digest()
            if self._said.get(key) == digest:
                return
            self._said[key] = digest
            row = {"t": self._time(mono), "ask": said.name, "with": said.arguments, "say": said.value}
            self._line(row | ({"error": said.error} if said.error else {}))

    def close(self) -> None:
        with self._lock:
            try:
                if self._gzip is not None:
                    self._gzip.close()
            finally:
                self._raw.close()

    def _time(self, mono: float) -> float:
        if self._start is None:
            self._start = mono
        self.last_t = max(self.last_t, round(mono - self._start, 6))
        return self.last_t

    def _line(self, row: Row) -> None:
        data = json.dumps(jsonable(row), separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"
        if self._gzip is None:
            self._raw.write(data)
            self._raw.flush()
        else:
            self._gzip.write(data)
            if time.monotonic() - self._flushed >= FLUSH_S:
                self._gzip.flush(zlib.Z_SYNC_FLUSH)
                self._raw.flush()
                self._flushed = time.monotonic()
        self.lines += 1


# -- reading


class Recording:
    """A recording that can be read at any of its times; its lines are taken apart when they are asked for.

    ``skipped``: lines that could not be read. ``cut``: the file ends in the middle of something.
    """

    def __init__(self, lines: Iterable[bytes], name: str = "recording") -> None:
        """Raises BadInput where this is no recording, or one of another version."""
        self.skipped = 0
        self.cut = False
        self.name = name
        self._lines = Lines()
        self._updates: list[Entry] = []
        self._full: list[int] = []  # which of them hold a full view
        self._said: dict[tuple[str, str], list[Entry]] = {}
        self.duration_s = 0.0
        found = iter(lines)
        try:
            self.header = _header(next(found, b""), name)
        except _BROKEN:
            raise BadInput(f"{name} is no recording of Flight Deck") from None
        try:
            for line in found:
                self._take(line)
        except _BROKEN:
            self.cut = True
        if not self._updates:
            raise BadInput(f"{name} holds no update of a fleet")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file. Raises BadInput."""
        try:
            with path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                with gzip.open(raw) if packed else raw as file:
                    return cls(iter(lambda: file.readline(LONGEST_LINE), b""), str(path))
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror or error}") from None

    def _read(self, entry: Entry) -> Row:
        return _row(self._lines.line(entry)) or {}

    def _take(self, line: bytes) -> None:
        row = _row(line)
        if row is None:
            whole = line.endswith(b"\n")
            self.skipped += whole
            self.cut = self.cut or not whole
            return
        self.duration_s = max(self.duration_s, float(row["t"]))
        entry = self._lines.add(self.duration_s, line)
        if "ask" in row:
            self._said.setdefault((str(row["ask"]), canonical(row.get("with") or {})), []).append(entry)
            return
        if "view" in row or not self._updates:
            self._full.append(len(self._updates))
        self._updates.append(entry)

    def times(self) -> list[float]:
        """When each update came, seconds since the start."""
        return [entry.t for entry in self._updates]

    def updates(self, first: int, end: int, mono: float) -> list[FeedUpdate]:
        """Updates by number, as the feed brought them; ``mono``: the monotonic time of the start."""
        start = max((index for index in self._full if index <= first), default=0)
        out: list[FeedUpdate] = []
        view: Row = {}
        for index in range(start, min(end, len(self._updates))):
            entry = self._updates[index]
            row = self._read(entry)
            now = None
            if isinstance(row.get("view"), dict):
                view = now = row["view"]
            elif isinstance(row.get("change"), dict):
                view = now = apply(view, row["change"])
            if index >= first:
                out.append(self._update(row, entry.t, mono, now))
        return out

    def still(self, t: float, mono: float) -> list[FeedUpdate]:
        """All there was at ``t`` as one update, or two where the database was lost then. Of what is older than a deck
        remembers only the last sample of each box."""
        end = max(1, sum(entry.t <= t for entry in self._updates))
        first = sum(entry.t < t - KEPT_S for entry in self._updates[: end - 1])
        first = max((index for index in self._full if index <= first), default=0)
        updates = self.updates(first, end, mono)
        live = next((update for update in reversed(updates) if update.state == "live"), None)
        if live is None:
            first, updates = 0, self.updates(0, end, mono)
            live = next((update for update in reversed(updates) if update.state == "live"), None)
        if live is None:
            return [updates[-1]]
        history: dict[str, list[BoxSample]] = {}
        for update in updates:
            for box, rows in (update.history or {}).items():
                history[box] = list(rows)
            for sample in update.samples:
                history.setdefault(sample.box, []).append(sample)
        view = next((update.view for update in reversed(updates) if update.view is not None), None)
        self._find_silent(history, view or {}, first)
        whole = FeedUpdate("live", live.at, live.mono, listening=live.listening, view=view, history=history)
        return [whole] if updates[-1].state == "live" else [whole, updates[-1]]

    def _find_silent(self, history: dict[str, list[BoxSample]], view: Row, before: int) -> None:
        """Look back for the last sample of boxes that have sent none for long."""
        boxes = view.get("boxes")
        names = [row.get("box") for row in boxes if isinstance(row, dict)] if isinstance(boxes, list) else []
        missing = {name for name in names if isinstance(name, str) and not history.get(name)}
        for entry in reversed(self._updates[:before]):
            if not missing:
                return
            row = self._read(entry)
            hour = row.get("hour")
            for rows in (*(hour.values() if isinstance(hour, dict) else ()), row.get("samples")):
                for sample in self._samples(rows):
                    if sample.box in missing:
                        history.setdefault(sample.box, []).append(sample)
            missing -= history.keys()

    def said(self, name: str, arguments: Mapping[str, Any], t: float) -> tuple[Said, float] | None:
        """The newest answer at ``t``, and when it came; before the first one: the first one. None: never asked."""
        entries = self._said.get((name, canonical(arguments)))
        if not entries:
            return None
        entry = next((entry for entry in reversed(entries) if entry.t <= t), entries[0])
        row = self._read(entry)
        return Said(name, dict(arguments), row.get("say"), str(row.get("error") or "")), entry.t

    def answers(self, t: float) -> dict[Key, Any]:
        """Everything that was answered, as it was at ``t``; what had an error is left out."""
        found = [self.said(name, arguments, t) for name, arguments in self.asked()]
        return {question_key(one[0].name, one[0].arguments): one[0].value for one in found if one and not one[0].error}

    def asked(self) -> list[tuple[str, Row]]:
        """Every question that was answered."""
        return [(name, json.loads(arguments)) for name, arguments in self._said]

    def _update(self, row: Row, t: float, mono: float, view: Row | None) -> FeedUpdate:
        link = [*row["link"], None, None, None, None, None, None]
        state, at, error, next_try_s, lost_s, listening = link[:6]
        hour = row.get("hour")
        return FeedUpdate(
            state=state if state in ("connecting", "live") else "lost",
            at=instant(at),
            mono=mono + t,
            error=error if isinstance(error, str) else None,
            next_try_s=number(next_try_s),
            lost_since_mono=None if number(lost_s) is None else mono + t - float(lost_s),
            listening=listening is True,
            view=view,
            samples=tuple(self._samples(row.get("samples"))),
            history={str(box): list(self._samples(rows)) for box, rows in hour.items()} if isinstance(hour, dict) else None,
        )  # fmt: skip

    def _samples(self, rows: Any) -> Iterable[BoxSample]:
        for row in rows if isinstance(rows, list) else ():
            sample = unpack(row, self.header.box_columns, self.header.gpu_columns)
            if sample is not None:
                yield sample


def _row(line: bytes) -> Row | None:
    """The content of one line, if it is one of a recording."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or number(row.get("t")) is None or not 0 <= row["t"] <= LONGEST_S:
        return None
    if "ask" in row:
        return row if isinstance(row.get("with") or {}, dict) else None
    return row if isinstance(row.get("link"), list) else None


def _header(line: bytes, name: str) -> Header:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or row.get("flightdeck") != "recording":
        raise BadInput(f"{name} is no recording of Flight Deck")
    if row.get("version") != VERSION:
        raise BadInput(
            f"{name} is a recording of version {row.get('version')}; this Flight Deck reads version {VERSION}"
        )
    columns = row.get("columns")
    try:
        at = datetime.fromisoformat(row["at"])
        box, gpu = (tuple(str(part) for part in columns[kind]) for kind in ("box", "gpu"))  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{name}: the first line of the recording makes no sense") from None
    return Header(at if at.tzinfo else at.replace(tzinfo=UTC), str(row.get("store") or ""), box, gpu)
