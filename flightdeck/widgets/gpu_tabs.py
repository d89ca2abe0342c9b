"""The GPUs of a box as a row of tabs, and what there is to say about the chosen one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rich.cells import cell_len

from engine.telemetry import throttle
from engine.telemetry.sample import GpuSample
from engine.telemetry.slow import WORDS, Slow
from flightdeck.model import units
from flightdeck.model.fleet import Device
from flightdeck.model.gpu_named import GpuNamed
from flightdeck.model.gpu_series import SERIES, Card
from flightdeck.model.text import clean
from flightdeck.model.timeline import Timeline
from flightdeck.widgets.gpu_named import health_part, named_parts
from flightdeck.widgets.lines import Line, Row, Span
from flightdeck.widgets.meter import gpu_limits, heat
from flightdeck.widgets.throttle_strip import NAMES, TONES

STATE_WORDS = {"lost": "LOST", "error": "ERROR", "asleep": "asleep"}
STATE_TONES = {"lost": "bad+b", "error": "bad+b", "asleep": "info"}
TAB_CELLS = 9  # `` 12 78C P``
_HEALTHY_XID = frozenset({None, 0})


@dataclass(frozen=True)
class Gpu:
    """The chosen GPU and all that is known about it. ``before``: its last good look, for one that does not answer."""

    now: GpuSample
    device: Device | None
    absent: Mapping[str, str]
    card: Card | None = None
    shutdown_c: float | None = None
    before: tuple[GpuSample, datetime] | None = None
    old: str = ""  # how old all of this is when nothing new comes, or the instant that is looked at
    box_mem: tuple[float | None, float | None] = (None, None)  # used and total of the box, which unified cards share
    slow: Slow | None = None  # it is slow without a reason
    named: GpuNamed | None = None  # health and what else has no column
    then: str | None = None  # the letters of the instant that is looked at


@dataclass
class Drawn:
    """A line and where its tabs stand, for the mouse: (first column, last + 1, GPU's identity)."""

    line: Line
    places: list[tuple[int, int, str]]


def tabs_line(gpus: Sequence[tuple[str, GpuSample]], chosen: str, width: int) -> Drawn:
    """One tab a GPU: its index and temperature, or LOST, ERROR, asleep. What does not fit is counted at the edges."""
    row = Row(width).add("GPU ", "dim")
    places: list[tuple[int, int, str]] = []
    at = next((index for index, (name, _) in enumerate(gpus) if name == chosen), 0)
    room = (width - 4) // TAB_CELLS
    if len(gpus) > room:
        room = max(1, (width - 4 - 8) // TAB_CELLS)
    first = min(max(0, at - room // 2), max(0, len(gpus) - room)) if len(gpus) > room else 0
    shown = gpus[first : first + room]
    if first:
        row.add(f"+{first}".ljust(4), "dim")
    for name, gpu in shown:
        start = row.used
        here = name == chosen
        word, tone = _tab(gpu)
        row.add(f" {gpu.gpu_index:>2} ", "bright+r" if here else "text")
        row.add(f"{word:<5}", tone)
        places.append((start, row.used, name))
    hidden = len(gpus) - first - len(shown)
    if hidden:
        row.add(f"+{hidden}", "dim")
    return Drawn(row.done(), places)


def _tab(gpu: GpuSample) -> tuple[str, str]:
    """In five cells."""
    if gpu.state in STATE_WORDS:
        return "sleep" if gpu.state == "asleep" else STATE_WORDS[gpu.state][:5], STATE_TONES[gpu.state]
    letter = throttle.letters(gpu.throttle_mask)[-1:]
    tone = TONES.get(letter, "dim") if letter else "dim"
    heat_c = units.number(gpu.temp_c) + ("C" if units.known(gpu.temp_c) else "")
    return f"{heat_c:<4}{letter}"[:5], tone


def name_line(gpu: Gpu, now: datetime, width: int) -> Line:
    """Index, name, state, uuid; of a GPU that does not answer its last values and how old they are."""
    row = Row(width).add(f"GPU {gpu.now.gpu_index}  ", "bright")
    device = gpu.device
    row.add(device.name if device is not None and device.name else "unknown model", "text")
    word = STATE_WORDS.get(gpu.now.state)
    if word is not None:
        row.add(f"  {word}", STATE_TONES[gpu.now.state])
        why = gpu.absent.get("state", "")
        if gpu.now.state == "asleep":
            row.add("  powered down, not woken to be read", "faint")
        elif gpu.before is not None:
            old, at = gpu.before
            row.add("  last ", "dim").add(f"{units.number(old.temp_c)} C  {units.watts(old.power_w)} W", "text")
            row.add(f"  {units.ago((now - at).total_seconds())}", "dim")
        else:
            row.add("  never answered since this deck looks", "dim")
        if why:
            row.add(f"  {why}", "faint")
    if gpu.old:
        row.add(f"  as it was {gpu.old}", "warn")
    uuid = clean(gpu.now.gpu_uuid, 60) or "no uuid"
    if row.used + cell_len(uuid) + 3 <= width:
        row.add(f"  {uuid}", "faint")
    return row.done()


def figures(gpu: Gpu, now: datetime) -> list[list[Span]]:
    """What the hardware says now, each as spans that stay together; what it does not say is n/a with its reason."""
    g, device = gpu.now, gpu.device
    found = [
        _temperature(gpu),
        _of("power", units.watts(g.power_w), _limit(g, device), "W", gpu.absent.get("power_w"), gpu.absent.get("power_limit_w")),
        _of("clock", units.number(g.sm_mhz), device.clock_max_mhz if device else None, "MHz", gpu.absent.get("sm_mhz")),
        _plain("use", units.percent(g.util_pct), gpu.absent.get("util_pct")),
        _memory(gpu),
    ]  # fmt: skip
    if units.known(g.mem_temp_c):
        found.append(_plain("mem temp", f"{units.number(g.mem_temp_c)} C"))
    found += [_fan(gpu), *_link(gpu)]
    if g.pstate is not None:
        found.append(_plain("pstate", f"P{g.pstate}"))
    found += [health_part(gpu.named), _ecc(gpu), _xid(gpu, now), *named_parts(gpu.named)]
    return [spans for spans in found if spans]


def held_line(gpu: Gpu, line: Timeline, width: int) -> Line:
    """What holds it back now, in letters and words; seconds per cause over the window; where they come from."""
    g, card = gpu.now, gpu.card
    row = Row(width).add("throttle ", "dim")
    letters = throttle.letters(g.throttle_mask) if gpu.then is None else gpu.then
    if gpu.then is None and g.throttle_mask is None and g.throttle_source in (None, "none"):
        why = gpu.absent.get("throttle_mask") or ("" if g.state == "ok" else STATE_WORDS.get(g.state, ""))
        return row.add("n/a  ", "dim").add(why or "no counters, no mask here", "faint").done()
    if gpu.slow is not None:
        words = f"{WORDS}: {gpu.slow.mhz:.0f} of {gpu.slow.usual_mhz:.0f} MHz  "
        row.add(words, "warn+b")
    for letter in letters:
        row.add(letter, TONES.get(letter, "warn"))
    said = [word for word in throttle.names(g.throttle_mask) if word != "idle"]
    if gpu.then is not None:
        said = [NAMES[letter] for letter in letters]
    none = "none then  " if gpu.old else "none now  "
    row.add(f" {', '.join(said)}  " if said else none, "text" if said else "faint")
    if card is not None:
        sums, brakes = card.totals(line)
        about = "~" if card.sampled else ""
        for cause in "PTBS":
            if sums.get(cause, 0.0) >= 100.0:
                row.add(f" {cause} {about}{units.seconds(sums[cause])}", TONES[cause]).add(f" {NAMES[cause]}", "dim")
        if brakes:
            row.add(f"  B x{brakes}", TONES["B"])
    source = {"counter": "hardware counters", "smi": "driver's counters", "mask": "sampled from the mask"}
    if g.throttle_source in source:
        row.right((f"  {source[g.throttle_source]}", "faint"))
    return row.done()


def at_instant(gpu: Gpu, line: Timeline, at: datetime, box_mem: tuple[float | None, float | None]) -> Gpu:
    """The same GPU as it was at an instant of the axis: the highest readings of that column; what has no past is n/a."""
    column, card = line.column(at), gpu.card
    if card is None or not 0 <= column < line.count:
        return gpu
    high: dict[str, Any] = {}
    for name in SERIES:
        pair = card.columns(name, line)[column]
        high[name] = None if pair is None else pair[1]
    now = gpu.now
    found = GpuSample(now.gpu_index, now.gpu_uuid, throttle_source=now.throttle_source, **high)
    absent = dict.fromkeys(("ecc_uncorrected", "xid", *SERIES), "not known of then") | dict(gpu.absent)
    return replace(
        gpu, now=found, old=at.astimezone().strftime("at %H:%M:%S"), then=card.causes(column, line), absent=absent,
        before=None, box_mem=box_mem, slow=None,
    )  # fmt: skip


def packed(parts: Sequence[Sequence[Span]], width: int, rows: int, gap: int = 3) -> list[Line]:
    """Groups of spans one after the other, in at most ``rows`` lines; a group is never broken, the last ones fall away."""
    lines = [Row(width)]
    for part in parts:
        size = sum(cell_len(text) for text, _ in part)
        row = lines[-1]
        if row.used and row.used + gap + size > width:
            if len(lines) == rows:
                continue
            row = Row(width)
            lines.append(row)
        if row.used:
            row.add(" " * gap)
        for text, style in part:
            row.add(text, style)
    return [row.done() for row in lines[:rows]]


def _plain(label: str, value: str, why: str | None = None) -> list[Span]:
    if value == units.NA:
        return _missing(label, why)
    return [(f"{label} ", "dim"), (value, "text")]


def _missing(label: str, why: str | None) -> list[Span]:
    return [(f"{label} ", "dim"), ("n/a", "faint"), (f" {why or 'not offered'}", "faint")]


def _of(
    label: str, value: str, most: float | None, unit: str, why: str | None, why_most: str | None = None
) -> list[Span]:
    """``power 412/700 W``; a limit that nobody tells is left out, with the reason."""
    if value == units.NA:
        return _missing(label, why)
    spans: list[Span] = [(f"{label} ", "dim"), (value, "text")]
    if units.known(most):
        spans.append((f"/{units.number(most)}", "dim"))
    spans.append((f" {unit}", "dim"))
    if not units.known(most) and why_most:
        spans.append((f" ({why_most})", "faint"))
    return spans


def _limit(g: GpuSample, device: Device | None) -> float | None:
    if units.known(g.power_limit_w):
        return g.power_limit_w
    return device.power_limit_w if device is not None else None


def _temperature(gpu: Gpu) -> list[Span]:
    value, device = gpu.now.temp_c, gpu.device
    if not units.known(value):
        return _missing("temp", gpu.absent.get("temp_c"))
    spans: list[Span] = [("temp ", "dim"), (units.number(value), heat(value, *gpu_limits(device)))]
    if device is not None and units.known(device.temp_slowdown_c):
        spans.append((f"/{units.number(device.temp_slowdown_c)} C slowdown", "dim"))
    else:
        spans.append((" C", "dim"))
    if units.known(gpu.shutdown_c):
        spans.append((f", {units.number(gpu.shutdown_c)} shutdown", "faint"))
    return spans


def _memory(gpu: Gpu) -> list[Span]:
    """``mem 57.7/121 G unified``: of a card without memory of its own the box's, and never 0/0."""
    g, device = gpu.now, gpu.device
    unified = device is not None and device.unified
    total = g.mem_total_mb if g.mem_total_mb else device.mem_mb if device is not None and device.mem_mb else None
    if unified:
        own = units.known(g.mem_used_mb) and bool(total)
        used, whole = (g.mem_used_mb, total) if own else gpu.box_mem
        spans: list[Span] = [("mem ", "dim"), ("unified ", "info")]
        if not units.known(used) or not whole:
            return [*spans, ("n/a", "faint")]
        return [*spans, (f"{units.gigabytes(used)}/{units.gigabytes(whole)}", "text"), (" G", "dim")]
    if not units.known(g.mem_used_mb) or not total:
        return _missing("mem", gpu.absent.get("mem_used_mb") or gpu.absent.get("mem_total_mb"))
    return [("mem ", "dim"), (units.gigabytes(g.mem_used_mb), "text"), (f"/{units.gigabytes(total)} G", "dim")]


def _fan(gpu: Gpu) -> list[Span]:
    g = gpu.now
    pct, rpm = units.known(g.fan_pct), units.known(g.fan_rpm)
    if not pct and not rpm:
        return _missing("fan", gpu.absent.get("fan_pct") or gpu.absent.get("fan_rpm"))
    parts = [units.percent(g.fan_pct)] if pct else []
    parts += [f"{units.number(g.fan_rpm)} rpm"] if rpm else []
    return [("fan ", "dim"), (" ".join(parts), "text")]


def _link(gpu: Gpu) -> list[list[Span]]:
    """The PCIe link. Cards that hang on the processor itself say Gen1 x1, which means nothing: left out."""
    gen, lanes = gpu.now.pcie_gen, gpu.now.pcie_width
    unified = gpu.device is not None and gpu.device.unified
    if unified or gen is None or lanes is None:
        return []
    return [[("PCIe ", "dim"), (f"gen {gen} x{lanes}", "text")]]


def _ecc(gpu: Gpu) -> list[Span]:
    count = gpu.now.ecc_uncorrected
    if count is None:
        return _missing("ECC", gpu.absent.get("ecc_uncorrected"))
    return [("ECC ", "dim"), (f"{count} uncorrected" if count else "0", "bad+b" if count else "text")]


def _xid(gpu: Gpu, now: datetime) -> list[Span]:
    """The last error that the driver told, and since when it stands there."""
    spans: list[Span]
    xid, card = gpu.now.xid, gpu.card
    if xid in _HEALTHY_XID and card is not None:
        xid = card.xid
    if xid in _HEALTHY_XID and gpu.named is not None and gpu.named.xid_last is not None:
        spans = [("Xid ", "dim"), (str(gpu.named.xid_last), "warn")]  # before this window
        return [*spans, (f" {units.ago(gpu.named.xid_age_s)}", "dim")]
    if xid in _HEALTHY_XID:
        why = gpu.absent.get("xid")
        return _missing("Xid", why) if why else [("Xid ", "dim"), ("none", "faint")]
    spans = [("Xid ", "dim"), (str(xid), "bad+b")]
    if card is not None and card.xid == xid and card.xid_at is not None:
        spans.append((f" {units.ago((now - card.xid_at).total_seconds())}", "dim"))
    return spans
