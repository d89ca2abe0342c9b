"""The page of an autopsy: what a box went through, as lines of text. Pure; ASCII but for the data in it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo

from engine.telemetry.evidence import SPAN_S, Climb, Evidence, On, slow_at_the_end
from engine.telemetry.sample import BoxSample, GpuSample
from engine.telemetry.slow import WORDS
from engine.telemetry.throttle import letters, names
from flightdeck.model import units
from flightdeck.model.lanes import exit_text
from flightdeck.model.text import clean

ROWS = 12  # of the table of clocks against load
TIMES = 4  # times on of one reason


def page(found: Evidence, width: int = 100, zone: tzinfo | None = None, *, naive: bool = False) -> list[str]:
    """The lines of the page, none longer than ``width``. ``zone`` None: this machine's."""
    when = _When(zone, found.last.at)
    lines = [*_title(found, when, naive, width), ""]
    for head, body in (
        ("IN SHORT", _short(found, when)),
        ("THE LAST SAMPLE", _last(found, when)),
        ("WHAT CLIMBED in the last 10 minutes, against the hour before", _climbed(found.climbs, when)),
        ("WHAT HELD IT BACK in that hour", _held(found, when)),
        ("CLOCKS AGAINST LOAD", _table(found.samples, when)),
        ("MEMORY", _memory(found)),
        ("ABOARD", _aboard(found, when)),
        ("LANES now, and how they last lost an executor", _lanes(found, when)),
        ("WHAT WAS DONE AND TOLD", _events(found, when)),
    ):
        lines += [head, *_indented(body, width), ""]
    return [_fit(line, width) for line in lines[:-1]]


def _indented(body: Iterable[str], width: int) -> Iterator[str]:
    """Two cells in; what is too long goes on in the next line, below its own text."""
    for line in body:
        hang = len(line) - len(line.lstrip()) + 2
        yield from textwrap.wrap(
            line, width, initial_indent="  ", subsequent_indent=" " * (hang + 6), break_long_words=False,
            drop_whitespace=True, replace_whitespace=False, break_on_hyphens=False,
        ) or [""]  # fmt: skip


class _When:
    """Times in the reader's zone; the date where it is another day than the end's."""

    def __init__(self, zone: tzinfo | None, end: datetime) -> None:
        self._zone = zone
        self.end = end.astimezone(zone)

    def __call__(self, at: datetime, seconds: bool = True) -> str:
        local = at.astimezone(self._zone)
        day = "" if local.date() == self.end.date() else "%m-%d "
        return local.strftime(f"{day}%H:%M:%S" if seconds else f"{day}%H:%M")

    def full(self, at: datetime) -> str:
        return at.astimezone(self._zone).strftime("%Y-%m-%d %H:%M:%S %Z")

    @property
    def zone(self) -> str:
        name, offset = self.end.tzname() or "", self.end.strftime("%z")
        numbers = f"UTC{offset[:3]}:{offset[3:5]}" if offset.strip("+-0") else "UTC"
        return numbers if name in ("", numbers) or name.startswith(("+", "-")) else f"{name} ({numbers})"


def _fit(line: str, width: int) -> str:
    """Cut by cells; wide characters count twice."""
    from rich.cells import cell_len, set_cell_size

    line = line.rstrip()
    return line if cell_len(line) <= width else set_cell_size(line, width - 2).rstrip() + ".."


def _title(found: Evidence, when: _When, naive: bool, width: int) -> Iterator[str]:
    yield f"AUTOPSY  {clean(found.box)}  at {when.full(found.asked)}"
    facts = found.facts
    if facts is not None:
        cards = [clean(gpu.name or gpu.vendor or "GPU") for gpu in facts.gpus]
        cards = [f"{cards.count(card)} x {card}" if cards.count(card) > 1 else card for card in dict.fromkeys(cards)]
        parts = [
            clean(facts.description), clean(facts.cpu_model), f"{facts.cores} cores" if facts.cores else "",
            f"{units.gigabytes(facts.mem_mb)} G" if facts.mem_mb else "", *cards,
            f"kernel {clean(facts.kernel)}" if facts.kernel else "", f"driver {clean(facts.driver)}" if facts.driver else "",
        ]  # fmt: skip
        yield from textwrap.wrap(", ".join(part for part in parts if part), width, break_on_hyphens=False)
    note = "; --at came without a zone and was taken as that" if naive else ""
    yield f"Times are {when.zone}{note}."


def _short(found: Evidence, when: _When) -> Iterator[str]:
    last, silent = found.last, found.silent_s
    if silent is not None:
        until = "until now" if found.next_at is None else f"until {when(found.next_at)}"
        yield f"No sample for {units.age(silent)} after {when(last.at)}, {until}: the row below is the last evidence."
        if found.next_at is None:
            yield (
                "Its recorder did not sign off: the power went, the system froze, or it was killed."
                if found.signed_on
                else "Its recorder signed off in order, or so long ago that nobody remembers."
            )
    else:
        yield f"It was recorded on: this is an hour of its life up to {when(last.at)}."
    if (found.asked - last.at).total_seconds() > 120 and silent is not None and found.next_at is None:
        yield f"Asked about {when.full(found.asked)}; nothing is known of that time."
    at_end = [reason for reason in found.reasons if reason.at_the_end and reason.letter != "P"]
    for reason in at_end[:3]:
        yield f"Held back at the end: {reason.who} {reason.letter} {reason.name}, since {when(reason.times[-1][0])}."
    capped = [reason for reason in found.reasons if reason.at_the_end and reason.letter == "P"]
    if capped and not at_end:
        yield f"At its power cap at the end ({capped[0].who}): usual under full load."
    if not found.reasons:
        told = _told(found.samples)
        yield "Nothing held it back in that hour." if told else "Whether anything held it back is not known."
    for slow in slow_at_the_end(last):
        yield f"GPU {slow.gpu_index} was {WORDS}: {slow.mhz:.0f} MHz, usually {slow.usual_mhz:.0f}."
    for climb in found.climbs[:1]:
        yield f"Moved most: {_climb_text(climb)}."
    for before, after in found.holes[:3]:
        yield f"A hole in the record: {when(before)} to {when(after)}."


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return units.NA
    if unit == "MiB":
        return f"{units.gigabytes(value)} G"
    return f"{value:.1f}" if abs(value) < 10 and unit == "" else f"{value:.0f}{'' if not unit else f' {unit}'}"


def _climb_text(climb: Climb) -> str:
    return f"{climb.what} from {_number(climb.before, climb.unit)} to {_number(climb.extreme, climb.unit)}"


def _last(found: Evidence, when: _When) -> Iterator[str]:
    last = found.last
    tier = "" if last.tier == "detail" else "  (the mean of that minute: details are gone)"
    yield f"{when.full(last.at)}{tier}"
    yield "  ".join(
        (
            f"CPU {_number(last.cpu_pct, '%')} {_number(last.cpu_temp_c, 'C')} {_number(last.cpu_mhz, 'MHz')}",
            f"load {_number(last.load1, '')}",
            f"memory {units.gigabytes(last.mem_used_mb)} of {units.gigabytes(last.mem_total_mb)} G",
            f"swap {units.gigabytes(last.swap_used_mb)} G",
            f"zone {_number(last.zone_max_c, 'C')} {clean(last.zone_max_name, 24)}".rstrip(),
            f"fan {_number(last.fan_max_rpm, 'rpm')}",
        )
    )
    for gpu in last.gpus:
        yield "  ".join(
            (
                f"GPU {gpu.gpu_index} {gpu.state}: {_number(gpu.util_pct, '%')} {_number(gpu.temp_c, 'C')}",
                f"{_number(gpu.power_w, 'W')} {_number(gpu.sm_mhz, 'MHz')}",
                f"memory {_of(found, gpu, gpu.mem_used_mb)}",
                _bits(gpu),
            )
        )
    if not last.gpus:
        yield "no GPU"


def _of(found: Evidence, gpu: GpuSample, used_mb: float | None) -> str:
    """``9.4 of 24.0 G``; of a card that has none of its own, ``9.4 G, unified``."""
    facts = next((one for one in found.facts.gpus if one.index == gpu.gpu_index), None) if found.facts else None
    if facts is not None and facts.unified:
        return f"{units.gigabytes(used_mb)} G, unified"
    return f"{units.gigabytes(used_mb)} of {units.gigabytes(gpu.mem_total_mb)} G"


def _bits(gpu: GpuSample) -> str:
    if gpu.throttle_mask is None:
        return "reasons n/a: not told"
    said = [name for name in names(gpu.throttle_mask) if name != "idle"]
    return f"held back by {', '.join(said)}" if said else "no reason to hold back"


def _climbed(climbs: Sequence[Climb], when: _When) -> Iterator[str]:
    for climb in climbs[:8]:
        yield (
            f"{climb.what:<24}{_number(climb.before, climb.unit):>10} -> {_number(climb.extreme, climb.unit):<10}"
            f"  at {when(climb.at)}"
        )
    if not climbs:
        yield "nothing that is worth a line"


def _held(found: Evidence, when: _When) -> Iterator[str]:
    for reason in found.reasons:
        mark = "~" if reason.sampled else " "
        held = units.NA if reason.seconds is None else units.seconds(reason.seconds * 1000.0)
        shown = reason.times[-TIMES:]
        more = f"{len(reason.times) - TIMES} before, " if len(reason.times) > TIMES else ""
        spans = ", ".join(_span(reason, span, when, index == len(shown) - 1) for index, span in enumerate(shown))
        yield f"{reason.who:<6} {reason.letter} {reason.name:<12} {mark}{held:>7}  {more}{spans}"
    if found.reasons:
        sampled = "~ sampled, a lower bound. " if any(reason.sampled for reason in found.reasons) else ""
        yield f"{sampled}Causes overlap: they are never added up."
    elif _told(found.samples):
        yield "nothing: 0 s"
    else:
        yield "n/a: nothing on this box tells"


def _told(samples: Sequence[BoxSample]) -> bool:
    """Whether anything on the box tells of throttling at all."""
    return any(
        sample.cpu_throttle_ms is not None
        or any(gpu.throttle_mask is not None or gpu.throttle_source not in (None, "none") for gpu in sample.gpus)
        for sample in samples
    )


def _span(reason: On, span: tuple[datetime, datetime], when: _When, newest: bool) -> str:
    if newest and reason.at_the_end:
        return f"{when(span[0])} on, to the end"
    return f"{when(span[0])}-{when(span[1])}"


def _table(samples: Sequence[BoxSample], when: _When) -> Iterator[str]:
    """A row for every five minutes, and the last three samples: loads and clocks are means, heat is the highest."""
    if not samples:
        yield "no samples"
        return
    yield f"{'time':<9}{'CPU %':>6}{'CPU C':>6}{'CPU GHz':>8}{'GPU %':>6}{'GPU C':>6}{'GPU W':>6}{'MHz':>6}{'mem G':>7}  held back"
    end = samples[-1].at
    step = timedelta(seconds=SPAN_S / ROWS)
    buckets: dict[int, list[BoxSample]] = {}
    for sample in samples:
        buckets.setdefault(-int((end - sample.at) / step), []).append(sample)
    for _, some in sorted(buckets.items()):
        yield _row(when(some[0].at, False), some)
    for sample in samples[-3:]:
        if sample.tier == "detail":
            yield _row(when(sample.at), [sample])
    if max(len(sample.gpus) for sample in samples) > 1:
        yield "Of several GPUs: the highest use, heat and power, the lowest clock."


def _row(label: str, samples: Sequence[BoxSample]) -> str:
    def mean(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def top(values: Iterator[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    def low(values: Iterator[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    mask = 0
    for sample in samples:
        for gpu in sample.gpus:
            mask |= gpu.throttle_mask or 0
    cells = (
        (mean(s.cpu_pct for s in samples), 6, 0), (top(s.high.get("cpu_temp_c", s.cpu_temp_c) for s in samples), 6, 0),
        (mean(None if s.cpu_mhz is None else s.cpu_mhz / 1000 for s in samples), 8, 2),
        (mean(top(g.util_pct for g in s.gpus) for s in samples), 6, 0),
        (top(g.high.get("temp_c", g.temp_c) for s in samples for g in s.gpus), 6, 0),
        (mean(top(g.power_w for g in s.gpus) for s in samples), 6, 0),
        (mean(low(g.sm_mhz for g in s.gpus) for s in samples), 6, 0),
        (mean(None if s.mem_used_mb is None else s.mem_used_mb / 1024 for s in samples), 7, 1),
    )  # fmt: skip
    return (
        f"{label:<9}"
        + "".join(units.number(value, digits).rjust(size) for value, size, digits in cells)
        + f"  {letters(mask)}"
    )


def _memory(found: Evidence) -> Iterator[str]:
    samples = found.samples
    known = [s for s in samples if s.mem_used_mb is not None]
    if not known:
        yield "n/a: not read"
        return
    first, last = known[0], known[-1]
    peak = max(s.high.get("mem_used_mb", s.mem_used_mb or 0.0) for s in known)
    total = next((s.mem_total_mb for s in reversed(known) if s.mem_total_mb), None)
    share = f" ({100 * peak / total:.0f} %)" if total else ""
    yield (
        f"system {units.gigabytes(first.mem_used_mb)} -> {units.gigabytes(last.mem_used_mb)} G, highest "
        f"{units.gigabytes(peak)} of {units.gigabytes(total)} G{share}; "
        f"swap {units.gigabytes(first.swap_used_mb)} -> {units.gigabytes(last.swap_used_mb)} G"
    )
    for gpu in last.gpus:
        used = [g for s in samples for g in s.gpus if g.gpu_index == gpu.gpu_index and g.mem_used_mb is not None]
        if used:
            peak = max(g.high.get("mem_used_mb", g.mem_used_mb or 0.0) for g in used)
            yield (
                f"GPU {gpu.gpu_index}  {units.gigabytes(used[0].mem_used_mb)} -> {units.gigabytes(used[-1].mem_used_mb)} G, "
                f"highest {_of(found, gpu, peak)}"
            )


def _aboard(found: Evidence, when: _When) -> Iterator[str]:
    for job in found.jobs:
        end = str(job["end"])
        if end == "running":
            became = "runs still" if found.silent_s is None else "still counts as running"
        else:
            cause = f" ({str(job['cause']).replace('_', ' ')})" if job["cause"] else ""
            code = f", {exit_text(job['exit_code'])}" if job["exit_code"] is not None else ""
            became = f"{end}{cause} {when(job['ended_at'])}{code}"
        project = clean(job["project"], 20) or "-"
        ran = units.age((found.last.at - job["started_at"]).total_seconds())
        yield f"job {job['job_id']}  {clean(job['queue'], 14):<8} {project}  {clean(job['name'], 40)}  ran {ran}: {became}"
    if not found.jobs:
        yield "no job of 10 s or more ran at that time"


def _lanes(found: Evidence, when: _When) -> Iterator[str]:
    for lane in found.lanes:
        seen = f"last beat {when(lane['last_seen'])}"
        flagged = f", counted as dead since {when(lane['flagged_dead_at'])}" if lane["flagged_dead_at"] else ""
        yield f"{clean(lane['queue'], 16):<10} {clean(lane['project'], 20) or '-'}  {lane['state']}, {lane['busy']}/{lane['slots']} busy, {seen}{flagged}"
        if lane["last_exit_code"] is not None or lane["last_exit_reason"]:
            yield f"           last exit: {exit_text(lane['last_exit_code'], clean(lane['last_exit_reason'], 120))}"
    if not found.lanes:
        yield "no lane"


def _events(found: Evidence, when: _When) -> Iterator[str]:
    for event in found.events:
        detail = event["detail"] if isinstance(event["detail"], Mapping) else {}
        text = clean(detail.get("text") or detail.get("reason"), 200)
        where = " ".join(part for part in (clean(event["queue"], 16), clean(event["project"], 20)) if part)
        by = clean(event["requested_by"], 40)
        yield f"{when(event['at'])}  {clean(event['action'], 20)} {where} {text}".rstrip() + (
            f"  by {by}" if by else ""
        )
    if not found.events:
        yield "nothing"
