"""The list of queues: a row each, columns by the width alone, and below it what there is to say of the chosen one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flightdeck.model import units
from flightdeck.model.queue_rows import QueueList, QueueRow, actual
from flightdeck.model.rows import seconds_since
from flightdeck.widgets.job_sections import wrapped
from flightdeck.widgets.lane_row import TONES
from flightdeck.widgets.lines import Glyphs, Line, Row, fit

STATE_CELLS = 11
WANTED_CELLS = 5
ORDERS_SHOWN = 4
MODELS_SHOWN = 6


@dataclass(frozen=True)
class Columns:
    """Cells of each column; 0: not shown."""

    queue: int
    project: int
    queued: int
    oldest: int
    running: int
    slots: int
    ended: int  # done and failed of the hour, each
    times: int  # mean and 95 %, of running and of waiting, each


def columns(width: int) -> Columns:
    if width < 80:
        return Columns(8, 6, 6, 0, 0, 6, 0, 0)
    if width < 100:
        return Columns(8, 10, 6, 6, 4, 6, 5, 0)
    if width < 150:
        return Columns(10, 12, 7, 6, 5, 7, 6, 6)
    return Columns(22, 24, 9, 9, 8, 11, 9, 9)


def note_line(found: QueueList, where: str, width: int) -> Line:
    row = Row(width).add(f"  {len(found.queues)} {'queue' if len(found.queues) == 1 else 'queues'}", "text")
    row.add(f"   {where}", "dim")
    if found.window_s < 3600.0:
        row.add(f"   done, failed and times: of the last {units.age(found.window_s)}, more was not read", "warn")
    else:
        row.add("   done, failed and times: of the last hour", "dim")
    if found.backlog_limit:
        row.add(f"   backlog limit {found.backlog_limit:,}", "dim")
    return row.done()


def heading(width: int) -> Line:
    size = columns(width)
    row = Row(width).add("", "faint", 2).add(fit("queue", size.queue), "faint").add(" ")
    row.add(fit("project", size.project), "faint").add(" ")
    for word, cells in (
        ("queued", size.queued), ("oldest", size.oldest), ("run", size.running), ("slots", size.slots),
        ("done", size.ended), ("failed" if size.ended >= 6 else "fail", size.ended), ("runs", size.times), ("95%", size.times),
        ("waits", size.times), ("95%", size.times),
    ):  # fmt: skip
        if cells:
            row.add(fit(word, cells, ">"), "faint").add(" ")
    return row.right(
        (fit("wanted" if width >= 100 else "want", WANTED_CELLS + (width >= 100), ">") + " ", "faint"),
        (fit("actual", STATE_CELLS, ">") + " ", "faint"),
    ).done()


def queue_row(queue: QueueRow, width: int, g: Glyphs, now: datetime, here: bool) -> Line:
    size = columns(width)
    row = Row(width, "s" if here else "").add(g.mark if here else "", "focus+b", 2)
    row.add(fit(queue.queue, size.queue), "bright" if here else "text").add(" ")
    row.add(fit(queue.project, size.project), "accent").add(" ")
    waiting = "bad" if queue.unplaceable else "text" if queue.queued else "faint"
    cells = [
        (many(queue.queued, queue.capped), size.queued, waiting),
        (units.age(seconds_since(queue.oldest_at, now)), size.oldest, "dim"),
        (units.count(queue.running), size.running, "info" if queue.running else "faint"),
        (f"{units.count(queue.busy)}/{units.count(queue.slots)}", size.slots, "text" if queue.slots else "faint"),
        (units.count(queue.done), size.ended, "ok" if queue.done else "faint"),
        (units.count(queue.failed), size.ended, "bad" if queue.failed else "faint"),
    ]
    for value in (queue.run_mean_s, queue.run_p95_s, queue.wait_mean_s, queue.wait_p95_s):
        cells.append((short_time(value), size.times, "dim"))
    for text, room, tone in cells:
        if room:
            row.add(fit(text, room, ">"), tone).add(" ")
    word = actual(queue)
    wanted = {"on": "on", "off": "off", "mixed": "mixed"}.get(queue.desired, "-")
    same = (wanted, word.text) in (("on", "ON"), ("off", "PARKED"))
    return row.right(
        (fit(wanted, WANTED_CELLS + (width >= 100), ">") + " ", "dim" if same or wanted == "-" else "warn"),
        (fit(word.text, STATE_CELLS, ">") + " ", TONES[word.tone]),
    ).done()


def many(n: int, capped: bool) -> str:
    return f"{units.count(n)}{'+' if capped else ''}"


def short_time(seconds: float | None) -> str:
    """At most six cells: ``34ms``, ``4.2s``, ``6m02``."""
    if not units.known(seconds):
        return "-"
    value = seconds or 0.0
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    return f"{value:.1f}s" if value < 9.95 else units.age(value)


def detail_lines(queue: QueueRow, width: int, height: int, g: Glyphs, now: datetime) -> list[Line]:
    """What the row has no room for, in exactly ``height`` lines: why it stands, who ordered it, what it wants."""
    lines: list[Line] = [_title(queue, width, g), _lanes(queue, width)]
    if queue.unplaceable:
        text = f"no slot could hold {many(queue.unplaceable, queue.unplaceable_capped)} of them: {queue.reason}"
        lines += wrapped(text, width, "bad", 2)[:2]
    elif not queue.lanes and queue.queued:
        lines.append(
            Row(width)
            .add("  nobody serves it: start a lane (queue-claim-worker --queue), or flightdeck up", "warn")
            .done()
        )
    lines += [_order_line(order, width, now) for order in queue.orders[:ORDERS_SHOWN]]
    if len(queue.orders) > ORDERS_SHOWN:
        lines.append(Row(width).add(f"  and {len(queue.orders) - ORDERS_SHOWN} more orders", "dim").done())
    if queue.scheduled:
        when = "" if queue.next_at is None else f", the first in {units.age((queue.next_at - now).total_seconds())}"
        lines.append(Row(width).add(f"  {queue.scheduled:,} of the queued are for later{when}", "dim").done())
    if queue.awaiting:
        hint = "2, tab to input: answer them"
        lines.append(
            Row(width).add(f"  {queue.awaiting:,} nodes wait for a person", "accent").add(f"   {hint}", "dim").done()
        )
    if queue.models:
        lines.append(_models(queue, width))
    blank = Row(width).done()
    return (lines + [blank] * height)[:height]


def _title(queue: QueueRow, width: int, g: Glyphs) -> Line:
    row = Row(width).add(f" {queue.queue} ", "bright")
    if queue.project != "-":
        row.add(f"of {queue.project} ", "accent")
    return row.add(g.rule * max(0, width - row.used - 1), "frame").done()


def _lanes(queue: QueueRow, width: int) -> Line:
    row = Row(width).add("  lanes ", "faint")
    if not queue.lanes:
        return row.add("none", "warn").done()
    counts = (
        (queue.on, "on", "ok"),
        (queue.parked, "parked", "warn"),
        (queue.changing, "changing", "info"),
        (queue.down, "down", "bad"),
    )
    for n, word, tone in counts:
        if n:
            row.add(f" {n} {word} ", tone)
    row.add(f"  {queue.busy} of {queue.slots} slots busy", "text")
    times = f"   runs {short_time(queue.run_mean_s)}, 95% under {short_time(queue.run_p95_s)}"
    times += f"; waits {short_time(queue.wait_mean_s)}, 95% under {short_time(queue.wait_p95_s)}"
    return row.add(times, "dim").done()


def _order_line(order: object, width: int, now: datetime) -> Line:
    from flightdeck.model.queue_rows import QueueOrder

    assert isinstance(order, QueueOrder)
    where = "every box" if order.box == "*" else order.box
    row = Row(width).add("  ordered off ", "warn").add(f"on {where}, {order.policy}", "text")
    if order.by:
        row.add(f", by {order.by}", "text")
    if order.at is not None:
        row.add(f", {units.ago((now - order.at).total_seconds())}", "dim")
    if order.until is not None:
        row.add(f", for {units.age((order.until - now).total_seconds())} more", "info")
    return row.add(f": {order.reason}" if order.reason else "", "text").done()


def _models(queue: QueueRow, width: int) -> Line:
    """What is wanted against what is warm."""
    row = Row(width).add("  models ", "faint")
    for need in queue.models[:MODELS_SHOWN]:
        row.add(f" {need.model} ", "text").add(
            f"{many(need.queued, need.capped)} queued", "text" if need.queued else "faint"
        )
        row.add(
            f", {need.warm} warm" if need.warm else ", cold", "ok" if need.warm else "warn" if need.queued else "dim"
        ).add("  ")
    if len(queue.models) > MODELS_SHOWN:
        row.add(f"and {len(queue.models) - MODELS_SHOWN} more", "dim")
    return row.done()
