"""The page of one job as sections of lines: facts, why it waits, hardware, attempts, run, input, output, log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len, chop_cells

from engine.lane.exits import explain
from flightdeck.charts.cells import bar
from flightdeck.model import units
from flightdeck.model.job_detail import Attempt, JobDetail, Log, Node, Payload, Run, Share
from flightdeck.model.lanes import cause_text
from flightdeck.widgets.job_table import TONES
from flightdeck.widgets.lines import Glyphs, Line, Row, fit
from flightdeck.widgets.throttle_strip import TONES as CAUSE_TONES

LABEL = 14
WRAPPED_MOST = 6  # rows of one line of a text
PROCESSOR = -1
NODE_TONES = {
    "running": "ok", "completed": "dim", "skipped": "faint", "failed": "bad", "cancelled": "warn", "queued": "text",
    "awaiting_input": "accent+b", "not yet": "faint",
}  # fmt: skip
NODE_MARKS = {
    "running": ">", "completed": "+", "skipped": "-", "failed": "x", "cancelled": "x", "queued": "o",
    "awaiting_input": "?", "not yet": ".",
}  # fmt: skip
EVENT_TONES = {"completed": "ok", "failed": "bad", "trip": "bad", "lost_claim": "bad", "cancelled": "warn"}


@dataclass(frozen=True)
class Section:
    """``key``: the letter that jumps to it."""

    key: str
    title: str
    lines: list[Line]


def head_lines(found: JobDetail, width: int, g: Glyphs, now: datetime) -> list[Line]:
    """What stays at the top: which job, what it is doing, how far it is."""
    job = found.job
    word = job.word(now)
    row = Row(width).add(f" job {job.id} ", "info").add(" ").add(job.title, "bright")
    ran = job.ran_s(now)
    time = "" if ran is None else f" {units.age(ran)}"
    line = row.right(
        (f" {word}{time} ".rjust(18), TONES.get(word, "text") + ("" if "+" in TONES.get(word, "") else "+b"))
    ).done()
    where = " on ".join(part for part in (job.queue, job.box) if part)
    second = Row(width).add("  ").add(where, "text").add(f"   project {job.project}", "accent")
    if job.run_id:
        second.add(f"   run {job.run_id}", "dim")
    if job.model:
        second.add(f"   model {job.model}", "dim")
    if job.is_priority:
        second.add("   runs next" if job.status == "queued" else "   was run next", "info")
    if job.progress_pct is not None:
        cells = max(0, min(24, width - second.used - 12))
        filled = bar(job.progress_pct / 100.0, cells)
        second.add("   ").add(g.full * filled, "info").add(g.track * (cells - filled), "track")
        second.add(units.percent(max(0.0, min(100.0, job.progress_pct))).rjust(5), "text")
    if job.progress_text:
        second.add(f"  {job.progress_text}", "dim")
    return [line, second.done()]


def facts(found: JobDetail, width: int, now: datetime) -> list[Line]:
    """Its columns in words, two to a row where there is room."""
    job, row = found.job, found.facts
    pairs: list[tuple[str, str]] = [("enqueued", _when(row["created_at"], now))]
    if job.later(now):
        pairs.append(("not before", _when(row["run_after"], now)))
    if row["started_at"] is not None:
        pairs.append(("started", _when(row["started_at"], now)))
    elif row["claimed_at"] is not None and job.status == "running":
        pairs.append(("claimed", _when(row["claimed_at"], now)))
    if row["finished_at"] is not None:
        pairs.append(("ended", _when(row["finished_at"], now)))
    ran = job.ran_s(now)
    if ran is not None:
        budget = f" of {units.age(row['budget_s'])} at most" if row["budget_s"] is not None else ""
        pairs.append(("ran" if found.over else "runs for", units.age(ran) + budget))
    pairs.append(("attempt", _attempts(found)))
    pairs.append(("priority", f"{units.number(row['priority'])}{', runs next' if job.is_priority else ''}"))
    spent = [
        f"{int(row[name])} {word}"
        for name, word in (("watchdog_retries", "of 3 by watchdogs or a death"), ("losses", "of 5 with a lost lane"))
        if row[name]
    ]
    if spent:
        pairs.append(("requeued", ", ".join(spent)))
    if job.status == "running":
        pairs.append(("held by", f"{row['claimed_by'] or 'nobody'}, fence {row['fencing_token']}"))
        if row["lease_expires_at"] is not None:
            left = (row["lease_expires_at"] - now).total_seconds()
            pairs.append(("lease", f"{units.age(left)} left" if left > 0 else "over: waits for the sweep"))
    for label, names in (("only on", found.only_boxes), ("not on", found.avoid_boxes)):
        if names:
            pairs.append((label, ", ".join(names)))
    for label, name in (("again of", "retry_of"), ("key", "idempotency_key")):
        if row[name]:
            pairs.append((label, row[name] if label == "key" else f"job {row[name]}"))
    if found.committed_at is not None:
        pairs.append(("committed", f"{_when(found.committed_at, now)} by {found.committed_by or '?'}"))
    return _grid(pairs, width)


def _attempts(found: JobDetail) -> str:
    row = found.facts
    text = units.number(row["attempt"])
    failures, most = row["failures"] or 0, row["max_attempts"] or 1
    if failures or most > 1:
        text += f", {failures:.0f} of {most:.0f} tries spent"
    return text


def _grid(pairs: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Label and value, in two columns where both fit."""
    half = (width - 2) // 2
    lines: list[Line] = []
    waiting: list[tuple[str, str]] = []

    def put() -> None:
        row = Row(width).add("  ")
        for label, value in waiting:
            row.add(fit(label, LABEL), "faint").add(value, "text").to(2 + half)
        lines.append(row.done())
        waiting.clear()

    for label, value in pairs:
        long = LABEL + cell_len(value) + 2 > half
        if long and waiting:
            put()
        waiting.append((label, value))
        if long or len(waiting) == 2:
            put()
    if waiting:
        put()
    return lines


def waits(found: JobDetail, width: int) -> list[Line]:
    """Why a queued job does not run yet."""
    lines = [line for reason in found.waits for line in wrapped(f"- {reason}", width, "warn", 2)]
    if found.ahead is not None:
        of = "its queue and model" if found.job.model else "its queue"
        text = f"- nothing of {of} goes before it"
        if found.ahead:
            text = f"- {found.ahead:,}{'+' if found.ahead_capped else ''} jobs of {of} go before it"
        lines.append(Row(width).add(f"  {text}", "text").done())
    return lines or [Row(width).add("  for a free slot", "text").done()]


def asked(found: JobDetail, width: int, read_only: bool) -> list[Line]:
    """What a node wants to be told by a person, and how."""
    lines = wrapped(found.prompt or "(no prompt)", width, "bright", 2)
    lines += [Row(width).add(f"  {line}", "dim").done() for line in found.schema]
    if found.submitted:
        hint, tone = "an answer is on its way to it", "info"
    elif read_only:
        hint, tone = "this deck is read-only: engine.submit_input(run_id, node_id, value) answers", "dim"
    else:
        hint, tone = "enter: answer it here (JSON, or a text); or engine.submit_input(run_id, node_id, value)", "accent"
    return [*lines, Row(width).add(f"  {hint}", tone).done()]


def hardware(shares: Sequence[Share], why: str, width: int) -> list[Line]:
    """A row per GPU: seconds throttled per cause, peaks, mean clock. No share: the reason."""
    if not shares:
        return [Row(width).add(f"  {why or units.NA}", "dim").done()]
    head = Row(width).add("  ")
    for word, cells in zip(
        ("", "power", "thermal", "brake", "peak C", "peak W", "clock GHz"), _SHARE_CELLS, strict=True
    ):
        head.add(fit(word, cells, ">" if word else "<"), "faint")
    return [head.add("  samples", "faint").done(), *(_share_row(share, width) for share in shares)]


_SHARE_CELLS = (10, 9, 9, 9, 8, 8, 10)


def _share_row(share: Share, width: int) -> Line:
    who = "processor" if share.gpu_index == PROCESSOR else f"gpu {units.number(share.gpu_index)}"
    row = Row(width).add("  ").add(fit(who, _SHARE_CELLS[0]), "text")
    held = (
        (share.power_ms, CAUSE_TONES["P"]),
        (share.thermal_ms, CAUSE_TONES["T"]),
        (share.brake_ms, CAUSE_TONES["B"]),
    )
    for (value, tone), cells in zip(held, _SHARE_CELLS[1:4], strict=True):
        text = units.NA if not units.known(value) else units.seconds(value)
        row.add(fit(text, cells, ">"), tone if (value or 0.0) >= 100.0 else "dim")
    for text, cells in zip(
        (units.number(share.temp_max_c), units.watts(share.power_max_w), units.gigahertz(share.sm_mean_mhz)),
        _SHARE_CELLS[4:],
        strict=True,
    ):
        row.add(fit(text, cells, ">"), "text")
    return row.add(fit(str(share.samples), 9, ">"), "dim").done()


def attempts(events: Sequence[Attempt], cut: bool, width: int) -> list[Line]:
    """What befell it, oldest first: a heading per attempt, a row per event, what else was written about it below."""
    if not events:
        return [Row(width).add("  nothing yet: an event is written at the end of an attempt", "faint").done()]
    lines: list[Line] = [Row(width).add("  older ones are left out", "faint").done()] if cut else []
    number: int | None = -1
    for event in events:
        if event.number != number:
            number = event.number
            lines.append(Row(width).add(f"  attempt {units.number(number)}", "bright").done())
        row = Row(width).add(f"    {clock(event.at)} ", "faint")
        word = event.kind.replace("_", " ") + (f": {cause_text(event.cause)}" if event.cause else "")
        row.add(fit(word, max(26, cell_len(word))), EVENT_TONES.get(event.kind, "warn"))
        row.add("  ").add(" ".join(part for part in (event.queue, event.box and f"on {event.box}") if part), "text")
        if event.elapsed_s is not None:
            row.add(f"   after {units.age(event.elapsed_s)}", "dim")
        lines.append(row.done())
        said = explain(event.exit_code) if event.exit_code else ""
        if said:
            lines += wrapped(f"exit {said}", width, "text", 13)
        for name, value in event.detail:
            if name == "reason" and said:  # lanes write a code with the code in front, and often nothing else
                value = re.sub(rf"^{event.exit_code}\b:? *", "", value.removeprefix(said))
            if value:
                lines += wrapped(f"{name.replace('_', ' ')}: {value}", width, "dim", 13)
    return lines


def run_lines(run: Run, here: str, width: int, now: datetime) -> list[Line]:
    """The graph as an indented list: each node after what it depends on, deeper where its way is longer."""
    tone = NODE_TONES.get(run.status, "text")
    counted = ", ".join(f"{n:,} {state.replace('_', ' ')}" for state, n in run.states)
    row = (
        Row(width).add(f"  {run.workflow or 'run'} {run.id} ", "text").add(run.status, tone).add(f"   {counted}", "dim")
    )
    if run.retry_of:
        row.add(f"   again of run {run.retry_of}", "dim")
    lines = [row.done()]
    if run.error:
        lines += wrapped(run.error, width, "bad", 2)
    lines += [_node_row(node, node.node_id == here, width, now) for node in run.nodes]
    if run.hidden:
        lines.append(Row(width).add(f"  and {run.hidden:,} more", "faint").done())
    return lines


def _node_row(node: Node, here: bool, width: int, now: datetime) -> Line:
    """Columns at the right stand still however deep the node is."""
    tone = NODE_TONES.get(node.status, "text")
    row = Row(width, "s" if here else "").add("  ")
    names = max(16, min(44, width - 46))
    indent = min(2 * node.depth, names - 10)
    row.add(" " * indent).add(f"{NODE_MARKS.get(node.status, '.')} ", tone)
    row.add(fit(node.node_id, names - indent), "bright" if here else "text").add(" ")
    row.add(fit(node.status.replace("_", " "), 14), tone).add(" ")
    ran = None if node.started_at is None else ((node.finished_at or now) - node.started_at).total_seconds()
    row.add(fit(units.age(ran) if ran is not None else "", 6, ">"), "dim").add("  ")
    if node.status == "running" and node.progress_pct is not None:
        row.add(units.percent(node.progress_pct).rjust(4), "text").add("  ")
    if node.waits_for:
        row.add(f"after {', '.join(node.waits_for)}", "faint")
    elif node.box:
        row.add(f"{node.queue} on {node.box}  ", "dim")
    elif node.queue:
        row.add(f"{node.queue}  ", "dim")
    return row.add(node.why, "bad" if node.status == "failed" else "dim").done()


def payload(found: Payload | None, nothing: str, width: int) -> list[Line]:
    if found is None:
        return [Row(width).add(f"  {nothing}", "faint").done()]
    lines = [line for text in found.lines for line in wrapped(text, width, "text", 2)]
    if found.cut:
        lines.append(Row(width).add(f"  cut: {found.size:,} characters in all", "warn").done())
    return lines


def error_lines(texts: Sequence[str], width: int) -> list[Line]:
    """The first line says what it is; the traceback is below."""
    return [line for at, text in enumerate(texts) for line in wrapped(text, width, "bad" if at == 0 else "text", 2)]


def log_lines(log: Log | None, width: int, now: datetime, over: bool) -> list[Line]:
    if log is None or not log.lines:
        return [Row(width).add("  it has printed nothing", "faint").done()]
    age = "" if log.updated_at is None or over else f", {units.ago((now - log.updated_at).total_seconds())}"
    cut = f"the end of {log.size:,} bytes" if log.cut else f"{log.size:,} bytes"
    lines = [Row(width).add(f"  attempt {log.attempt}, {cut}{age}", "faint").done()]
    return lines + [line for text in log.lines for line in wrapped(text, width, "text", 2)]


def wrapped(text: str, width: int, tone: str, indent: int) -> list[Line]:
    """A line of text in as many rows as it needs, but not more than a few."""
    room = max(10, width - indent - 1)
    parts = [text[at : at + room] for at in range(0, len(text), room)] if text.isascii() else chop_cells(text, room)
    parts = parts or [""]
    if len(parts) > WRAPPED_MOST:
        parts = [*parts[: WRAPPED_MOST - 1], fit(parts[WRAPPED_MOST - 1], room - 1) + "~"]
    return [Row(width).add(" " * indent).add(part, tone).done() for part in parts]


def title_line(section: Section, width: int, g: Glyphs) -> Line:
    row = Row(width).add(f" {section.title} ", "bright")
    row.add(f" {section.key} ", "key") if section.key else row
    row.add(" ")
    return row.add(g.rule * max(0, width - row.used - 1), "frame").done()


def clock(at: datetime | None) -> str:
    return at.astimezone().strftime("%H:%M:%S") if at is not None else "--:--:--"


def _when(at: datetime | None, now: datetime) -> str:
    """The time of day, with the date where it is another day, and how long ago or ahead."""
    if at is None:
        return "-"
    local, today = at.astimezone(), now.astimezone()
    day = "" if local.date() == today.date() else local.strftime("%Y-%m-%d ")
    away = (now - at).total_seconds()
    return f"{day}{local:%H:%M:%S}, {units.ago(away) if away >= 0 else f'in {units.age(-away)}'}"
