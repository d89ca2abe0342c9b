"""Alerts on the deck: what an operator should look at, once per episode, until somebody has seen it. Pure: the clock is the deck's.

Levels (a box that is down, a hot GPU) begin when they were reached for their ``hold_s`` and end below ``clear``, so that a reading
which trembles around a limit is one alert. What happens once (a run failed) stands until it is acknowledged. While the
database is away nothing is judged. A GPU at its power cap is no alert: that is what a full load looks like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from engine.telemetry import slow
from engine.telemetry.limits import THROTTLE_LEVELS, UNKNOWN_GPU, Level, Limits
from engine.telemetry.strip import worst_of
from flightdeck.model import units
from flightdeck.model.deck import Deck, Update
from flightdeck.model.fleet import Box, Device, show_project
from flightdeck.model.lanes import lane_word
from flightdeck.model.text import clean

if TYPE_CHECKING:
    from engine.telemetry.sample import BoxSample, GpuSample

POISON = frozenset({"executor_died", "trip", "lane_lost", "lease_lapsed"})
CAUSES = {"T": "heat", "B": "power brake", "C": "cpu protection"}
WINDOW = timedelta(seconds=60)
MOST_MS = 1e9  # of one sample
GONE_S = 3.0  # what is no level of a reading: so long it must be there, or gone
LEADER_S = 5.0
FORGOTTEN_S = 86_400.0  # a box that is silent for so long is no news
KEPT = 200
RUNS_KNOWN = 500


@dataclass(frozen=True, slots=True)
class Alert:
    """One episode. ``word`` is short and in capitals, ``text`` says the rest; ``ended`` None: it goes on."""

    key: str
    word: str
    box: str
    text: str
    tone: str
    at: datetime
    ended: datetime | None = None
    seen: bool = False
    happened: bool = False  # it has no end: it is over when it is seen

    @property
    def open(self) -> bool:
        return not self.seen if self.happened else self.ended is None

    @property
    def line(self) -> str:
        return f"{self.word} {self.box} {self.text}".replace("  ", " ").strip()


@dataclass(frozen=True, slots=True)
class Finding:
    """What is looked at right now: its level is reached (``above``), or it is in between. What is fine is no finding."""

    word: str
    box: str
    text: str
    above: bool = True
    hold_s: float = 0.0
    tone: str = "bad"


@dataclass(slots=True)
class _Episode:
    above_since: float | None = None
    below_since: float | None = None
    hold_s: float = GONE_S
    alert: Alert | None = None


class _Held:
    """How long one box was held back in the last minute: what each sample said, and the sums, in whole microseconds."""

    def __init__(self) -> None:
        self.rows: deque[tuple[datetime, dict[str, int]]] = deque()
        self._sums: dict[str, tuple[int, int]] = {}  # letter: microseconds, and how many samples know it

    def add(self, at: datetime, causes: Mapping[str, float]) -> None:
        row = {letter: round(min(ms, MOST_MS) * 1000.0) for letter, ms in causes.items()}
        self.rows.append((at, row))
        self._count(row, 1)
        self._forget(at)

    def seconds(self, at: datetime) -> dict[str, float]:
        self._forget(at)
        return {letter: min(60.0, micros / 1e6) for letter, (micros, known) in self._sums.items() if known}

    def _forget(self, at: datetime) -> None:
        edge = at - WINDOW
        while self.rows and self.rows[0][0] <= edge:
            self._count(self.rows.popleft()[1], -1)

    def _count(self, row: Mapping[str, int], sign: int) -> None:
        for letter, micros in row.items():
            before, known = self._sums.get(letter, (0, 0))
            self._sums[letter] = before + sign * micros, known + sign


class Alerts:
    """Follows one deck. The levels are those of each box's class (``Box.limits``)."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Episode] = {}
        self._held: dict[str, _Held] = {}
        self._heats: dict[str, tuple[tuple[Device, ...], dict[str | int | None, Level | None]]] = {}
        self._events: int | None = None  # the newest event that was looked at
        self._runs: deque[str] = deque(maxlen=RUNS_KNOWN)
        self.all: deque[Alert] = deque(maxlen=KEPT)  # newest first

    # -- what screens ask

    def unseen(self) -> list[Alert]:
        """Open alerts that nobody has acknowledged, newest first."""
        return [alert for alert in self.all if alert.open and not alert.seen]

    def seen(self) -> int:
        """Acknowledge all of them; how many."""
        mine = self.unseen()
        for alert in mine:
            self._replace(alert, replace(alert, seen=True))
        return len(mine)

    # -- what is new

    def forget(self) -> None:
        """Time has jumped (a recording): nothing that was known holds."""
        self.__init__()  # type: ignore[misc]

    def take(self, update: Update, deck: Deck) -> list[Alert]:
        """Samples and events of an update that the deck has taken in; the alerts of things that happened."""
        for sample in update.samples:
            self._remember(sample)
        if update.view is None:
            return []
        events = update.view.get("events")
        return self._happened(events, deck) if isinstance(events, list | tuple) else []

    def look(self, deck: Deck) -> list[Alert]:
        """Judge everything as it stands now; the alerts that begin. To be called every second or two."""
        if deck.link.state != "live" or not deck.loaded:
            return []
        now, at = deck.clock.mono(), deck.now()
        found = dict(self._findings(deck, at))
        begun = []
        for key in [*found, *(key for key in self._episodes if key not in found)]:
            alert = self._step(key, found.get(key), now, at)
            if alert is not None:
                begun.append(alert)
        return begun

    def _step(self, key: str, finding: Finding | None, now: float, at: datetime) -> Alert | None:
        """One episode's next moment; the alert if it begins. Without a finding it is over: the thing is gone, or fine."""
        episode = self._episodes.get(key)
        if finding is not None and finding.above:
            episode = self._episodes.setdefault(key, _Episode())
            episode.below_since, episode.hold_s = None, max(GONE_S, finding.hold_s)
            episode.above_since = now if episode.above_since is None else episode.above_since
            if episode.alert is not None:
                newer = replace(episode.alert, text=finding.text, tone=finding.tone)
                episode.alert = self._replace(episode.alert, newer)
            elif now - episode.above_since >= finding.hold_s:
                episode.alert = Alert(key, finding.word, finding.box, finding.text, finding.tone, at)
                self.all.appendleft(episode.alert)
                return episode.alert
            return None
        if episode is None:
            return None
        if finding is None:  # fine, or gone; one reading that is missing ends nothing
            episode.below_since = now if episode.below_since is None else episode.below_since
            if episode.alert is None or now - episode.below_since >= episode.hold_s:
                if episode.alert is not None:
                    self._replace(episode.alert, replace(episode.alert, ended=at))
                del self._episodes[key]
        else:
            episode.below_since = None
            if episode.alert is None:
                episode.above_since = None  # it did not hold
        return None

    def _replace(self, old: Alert, new: Alert) -> Alert:
        """Put a newer state of an alert in its place in the list."""
        if new != old:
            for index, alert in enumerate(self.all):
                if alert.key == old.key and alert.at == old.at:
                    new = replace(new, seen=new.seen or alert.seen)
                    self.all[index] = new
                    break
            episode = self._episodes.get(old.key)
            if episode is not None and episode.alert is not None and episode.alert.at == old.at:
                episode.alert = new
        return new

    # -- what is looked at

    def _findings(self, deck: Deck, at: datetime) -> Iterable[tuple[str, Finding]]:
        if deck.leaderless():
            yield (
                "leader",
                Finding("NO LEADER", "", "graphs stand still: no queue-orchestrator leads", hold_s=LEADER_S),
            )
        age = deck.view_age()
        for box in deck.boxes():
            state = deck.box_state(box)
            if state == "down":
                ago = deck.sample_age(box)
                beats = [lane.last_seen_s + age for lane in box.lanes if lane.last_seen_s is not None]
                heard = min([*beats, *([] if ago is None else [ago])], default=None)
                if not deck.ended(box) and (heard is None or heard < FORGOTTEN_S):
                    text = f"last sample {units.ago(ago)}" if ago is not None else f"last heard of {units.ago(heard)}"
                    yield f"down|{box.raw}", Finding("BOX DOWN", box.name, text)
                continue
            for lane in box.lanes:
                if lane.silent(age) and lane_word(lane, age).text == "DOWN":
                    project = f" ({lane.project})" if lane.raw_project else ""
                    text = f"{lane.queue}{project} silent for {units.age((lane.last_seen_s or 0.0) + age)}"
                    yield (
                        f"lane|{box.raw}|{lane.raw_queue}|{lane.raw_project}",
                        Finding("LANE DOWN", box.name, text, hold_s=GONE_S),
                    )
            if state == "up":
                yield from self._hardware(deck, box, at)

    def _hardware(self, deck: Deck, box: Box, at: datetime) -> Iterable[tuple[str, Finding]]:
        sample = deck.history(box).latest
        if sample is None:
            return
        limits = box.limits
        for gpu in sample.gpus:
            yield from self._gpu(box, gpu, limits)
        heat = sample.cpu_temp_c if units.known(sample.cpu_temp_c) else sample.zone_max_c
        if finding := _level("HOT", box.name, "cpu", heat, limits.cpu_c, " C"):
            yield f"hot|{box.raw}|cpu", finding
        total = sample.mem_total_mb or box.mem_mb
        used = sample.mem_used_mb
        share = 100.0 * used / total if total and used is not None and units.known(used) else None
        if finding := _level("MEMORY", box.name, "", share, limits.memory_pct, " %"):
            yield f"memory|{box.raw}", finding
        for letter, seconds in self._seconds(box.raw, at).items():
            level: Level | None = getattr(limits, THROTTLE_LEVELS[letter])
            if level is not None and seconds >= level.clear:
                text = f"held back by {CAUSES[letter]}: {units.seconds(seconds * 1000.0)} of the last minute"
                yield (
                    f"throttled|{box.raw}|{letter}",
                    Finding("THROTTLED", box.name, text, seconds >= level.hot, level.hold_s),
                )
        for flag in slow.flags(sample.sensors):
            text = f"gpu {flag.gpu_index} without a reason: {flag.mhz:.0f} MHz, usually {flag.usual_mhz:.0f}"
            yield (
                f"slow|{box.raw}|{flag.gpu_uuid or flag.gpu_index}",
                Finding("SLOW", box.name, text, tone="warn"),
            )

    def _gpu(self, box: Box, gpu: GpuSample, limits: Limits) -> Iterable[tuple[str, Finding]]:
        name = gpu.gpu_uuid or f"#{gpu.gpu_index}"
        if gpu.state == "lost":
            text = f"gpu {gpu.gpu_index} does not answer"
            yield f"lost|{box.raw}|{name}", Finding("GPU LOST", box.name, text, hold_s=GONE_S)
            return
        heat = self._heat(box, gpu)
        if _fine(gpu.temp_c, heat) and _fine(gpu.power_w, limits.power_w):
            return  # nearly all of them are, nearly always
        if finding := _level("HOT", box.name, f"gpu {gpu.gpu_index}", gpu.temp_c, heat, " C"):
            yield f"hot|{box.raw}|{name}", finding
        if finding := _level("POWER", box.name, f"gpu {gpu.gpu_index}", gpu.power_w, limits.power_w, " W"):
            yield f"power|{box.raw}|{name}", finding

    def _heat(self, box: Box, gpu: GpuSample) -> Level | None:
        """From when on a card is hot: by what its facts say, found by its uuid or its index."""
        devices, heats = self._heats.get(box.raw, ((), {}))
        if devices is not box.devices:
            heats = {one.index: one.heat for one in reversed(box.devices)}
            heats |= {one.uuid: one.heat for one in reversed(box.devices) if one.uuid}
            self._heats[box.raw] = box.devices, heats
        unknown = box.limits.gpu_c or UNKNOWN_GPU
        return heats[gpu.gpu_uuid] if gpu.gpu_uuid in heats else heats.get(gpu.gpu_index, unknown)

    # -- throttling: seconds of the last minute, from the samples themselves

    def _remember(self, sample: BoxSample) -> None:
        if sample.tier != "detail":
            return
        held = self._held.setdefault(sample.box, _Held())
        if held.rows and sample.at <= held.rows[-1][0]:
            return  # read again, by notification and from the table
        held.add(sample.at, _causes(sample))

    def _seconds(self, box: str, at: datetime) -> dict[str, float]:
        """Per cause; a cause that no sample of the minute knows is left out."""
        held = self._held.get(box)
        return {} if held is None else held.seconds(at)

    # -- what happened

    def _happened(self, events: Sequence[Any], deck: Deck) -> list[Alert]:
        rows = [row for row in events if isinstance(row, Mapping) and _number(row.get("id")) is not None]
        newest = max((_number(row["id"]) or 0 for row in rows), default=0)  # a new database has none
        before, self._events = self._events, max(newest, self._events or 0)
        if before is None:  # what happened before anybody looked is history
            return []
        begun = []
        for row in sorted(rows, key=lambda row: _number(row["id"]) or 0):
            if (_number(row["id"]) or 0) <= before or row.get("type") != "failed":
                continue
            alert = self._failure(row, deck.now())
            if alert is not None:
                self.all.appendleft(alert)
                begun.append(alert)
        return begun

    def _failure(self, row: Mapping[str, Any], at: datetime) -> Alert | None:
        number, text = clean(row.get("id"), 30), clean(row.get("text"), 200)
        box, project = clean(row.get("box"), 60), show_project(row.get("project"))
        if row.get("cause") in POISON:
            return Alert(f"poison|{number}", "POISON JOB", box, text, "bad", at, happened=True)
        run = clean(row.get("run_id"), 30)
        if not run or run in self._runs:
            return None
        self._runs.append(run)
        of = f" of {project}" if row.get("project") else ""
        return Alert(f"run|{run}", "RUN FAILED", "", f"{run}{of}: {text}", "bad", at, happened=True)


def _level(word: str, box: str, what: str, value: float | None, level: Level | None, unit: str) -> Finding | None:
    """A reading against its level; None: it is fine, or there is no reading or no level."""
    if level is None or value is None or not units.known(value) or value < level.clear:
        return None
    text = f"{what} {value:.0f}{unit} (limit {level.hot:.0f})".strip()
    return Finding(word, box, text, value >= level.hot, level.hold_s)


def _fine(value: float | None, level: Level | None) -> bool:
    return level is None or value is None or value < level.clear


def _causes(sample: BoxSample) -> dict[str, float]:
    """Milliseconds per cause of one sample, the worst GPU speaking for the box; unknown causes are left out."""
    thermal = sample.thermal_ms
    if not units.known(thermal):
        thermal = worst_of([value for gpu in sample.gpus for value in (gpu.sw_thermal_ms, gpu.hw_thermal_ms)])
    found = {"T": thermal, "B": worst_of([gpu.hw_brake_ms for gpu in sample.gpus]), "C": sample.cpu_throttle_ms}
    return {letter: max(0.0, float(ms)) for letter, ms in found.items() if ms is not None and units.known(ms)}


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def toast(alerts: Alerts, keys: str) -> tuple[str, str] | None:
    """For the line of events: the newest alert that nobody has seen, how many more, and the key; (text, style)."""
    unseen = alerts.unseen()
    if not unseen:
        return None
    first = unseen[0]
    more = f"  +{len(unseen) - 1}" if len(unseen) > 1 else ""
    return f"! {first.line}{more}  ({keys}: seen)", f"{first.tone}+b"
