"""Xids: what NVIDIA's driver calls the faults of a card. From NVML's events, else from the kernel's log.

Nothing here waits: events are taken as far as they have come, the log is read to its end and no further.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.telemetry.probes import nvml_fields as ids

AT_ONCE = 16  # events of one look; a storm of them is not worth more
RECORDS = 2000  # of the kernel's log in one look
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})[^)]*\): (\d+)")


@dataclass(frozen=True)
class Xid:
    """``card``: uuid, or the bus id without its function; ``at``: seconds on the monotonic clock."""

    card: str
    number: int
    at: float


class KernelLog:
    """Reads ``/dev/kmsg`` (root's to read, mostly) on from where it was; the first time from its beginning."""

    def __init__(self, root: Path) -> None:
        self._path = f"{root}/dev/kmsg"
        self._fd: int | None = None
        self._rest = b""
        self.readable = True

    def read(self) -> list[Xid]:
        if self._fd is None and not self._open():
            return []
        found = []
        for _ in range(RECORDS):
            try:
                chunk = os.read(self._fd or 0, 8192)  # of the real one: a single record
            except BrokenPipeError:
                continue  # overwritten before it was read
            except OSError:
                break  # nothing further
            if not chunk:
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            found += [xid for line in lines if (xid := parse(line)) is not None]
        return found

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        if self.readable:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self.readable = False
        return self._fd is not None


def parse(record: bytes) -> Xid | None:
    """``4,812,5038271643,-;NVRM: Xid (PCI:0000:01:00): 79, ...``: microseconds since boot in the third place."""
    if b"NVRM: Xid" not in record or (match := _XID.search(record)) is None:
        return None
    head = record.partition(b";")[0].split(b",")
    try:
        at = int(head[2]) / 1e6
    except (IndexError, ValueError):
        return None
    domain, rest = match[1].decode().lower().split(":", 1)
    return Xid(f"{int(domain, 16):04x}:{rest}", int(match[2]), at)


class Events:
    """NVML's event set over the cards that offer one. ``covered``: their uuids."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self.covered: set[str] = set()
        self._asked: set[str] = set()
        self._uuids: dict[int, str] = {}  # by handle: a card that fell off the bus cannot be asked any more

    def cover(self, uuid: str, handle: Any) -> None:
        """Register a card, once."""
        if uuid in self._asked:
            return
        self._asked.add(uuid)
        self._uuids[_address(handle)] = uuid
        nvml = self._nvml
        try:
            offered = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            wanted = offered & (ids.EVENT_XID | ids.EVENT_UNAVAILABLE | ids.EVENT_RECOVERY)
            if wanted & ids.EVENT_XID:
                self._set = self._set or nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
                self.covered.add(uuid)
        except (nvml.NVMLError, AttributeError):
            pass  # not on this card, or not with these bindings

    def take(self, now: float) -> tuple[list[Xid], set[str]]:
        """The Xids that have come, and the cards that told of anything else (whose health is worth a look)."""
        found: list[Xid] = []
        others: set[str] = set()
        for _ in range(AT_ONCE if self._set is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except (self._nvml.NVMLError, AttributeError):
                break  # a timeout: none
            uuid = self._uuids.get(_address(event.device), "")
            if event.eventType & ids.EVENT_XID:
                found.append(Xid(uuid, int(event.eventData), now))
            else:
                others.add(uuid)
        return found, others

    def close(self) -> None:
        held, self._set = self._set, None
        if held is not None:
            try:
                self._nvml.nvmlEventSetFree(held)
            except (self._nvml.NVMLError, AttributeError):
                pass


class Xids:
    """The last Xid of every card. Feed it once per look; then ask for each card."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = KernelLog(root)
        self._clock = clock
        self._began = clock()
        self._events: Events | None = None
        self._last: dict[str, Xid] = {}
        self._told: dict[str, Xid] = {}
        self.hurry: set[str] = set()  # uuids of cards whose health is worth a look

    def nvml(self, nvml: Any | None) -> None:
        """NVML was started, or is about to be stopped."""
        if self._events is not None:
            self._events.close()
        self._events = Events(nvml) if nvml is not None else None

    def look(self, cards: Sequence[tuple[str, str | None, Any]]) -> None:
        """Take what has come. ``cards``: uuid, bus id and handle of those that are awake."""
        covered: set[str] = set()
        self.hurry = set()
        if self._events is not None:
            for uuid, _, handle in cards:
                if handle is not None:
                    self._events.cover(uuid, handle)
            found, self.hurry = self._events.take(self._clock())
            covered = self._events.covered
            for xid in found:
                self._last[xid.card] = xid
                self.hurry.add(xid.card)
        by_bus = {pci.rpartition(".")[0]: uuid for uuid, pci, _ in cards if pci}
        for xid in self._log.read():
            uuid = by_bus.get(xid.card, xid.card)
            if uuid not in covered or xid.at < self._began:  # else the event tells the same
                self._last[uuid] = Xid(uuid, xid.number, xid.at)

    def news(self, uuid: str, pci: str | None) -> int | None:
        """The Xid of this card that came since the last call; those from before this recorder began are no news."""
        last = self._of(uuid, pci)
        if last is None or last.at < self._began or self._told.get(uuid) == last:
            return None
        self._told[uuid] = last
        return last.number

    def last(self, uuid: str, pci: str | None) -> Mapping[str, Any]:
        """``xid_last`` and ``xid_age_s``; empty: none since the kernel started, as far as its log goes back."""
        last = self._of(uuid, pci)
        return {} if last is None else {"xid_last": last.number, "xid_age_s": round(self._clock() - last.at)}

    def close(self) -> None:
        self.nvml(None)
        self._log.close()

    def _of(self, uuid: str, pci: str | None) -> Xid | None:
        return self._last.get(uuid) or (self._last.get(pci.rpartition(".")[0]) if pci else None)


def _address(handle: Any) -> int:
    """What makes two handles of one card equal: where they point to."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return id(handle)
