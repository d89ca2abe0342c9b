"""The lines above and below the fleet: header with project tabs, banner, event line, key line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from rich.cells import cell_len

from flightdeck.model import units
from flightdeck.model.axis import HOUR_S
from flightdeck.model.deck import Deck
from flightdeck.model.fleet import Event, Project
from flightdeck.widgets.lines import Line, Row, Span, fit
from flightdeck.widgets.scene import Scene


@dataclass
class Tabs:
    """Where tabs stand, for the mouse: (first column, last column + 1, what it shows): projects (None: all) and pages."""

    places: list[tuple[int, int, str | None]] = field(default_factory=list)
    pages: list[tuple[int, int, str]] = field(default_factory=list)


def header_line(
    scene: Scene,
    width: int,
    pages: Sequence[tuple[str, str]],
    page: str,
    store: str = "",
    frozen_s: float | None = None,
    read_only: bool = False,
) -> tuple[Line, Tabs]:
    """One line: name, pages (key, name), project tabs with counts (queued and running), lanes parked and draining,
    window of time, freshness, clock, database.

    The right side stands in fixed cells; where the terminal is narrow, words go away from both sides.
    """
    projects, pages = scene.deck.projects(), tuple(pages)
    wanted = _wanted(projects, width)
    for wordy, level in ((True, 0), (True, 1), (True, 2), (False, 1), (False, 2), (False, 3)):
        tail = _tail(scene, level, store if width >= 100 else "", frozen_s, read_only)
        room = width - sum(cell_len(text) for text, _ in tail) - 1
        if wanted + sum(len(text) for text, _, _ in _page_chips(pages, page, wordy)) <= room:
            break
    left, tabs = _left(projects, scene.project, pages, page, wordy, width, room)
    return Row(width).put(left).right(*tail).done(), tabs


def _title(width: int) -> str:
    return " FLIGHT DECK " if width >= 100 else ""  # where it is narrow the pages say what this is


def _chips(projects: tuple[Project, ...]) -> list[tuple[str, str, str | None]]:
    """(name, number, raw name) of each tab of a project, ``all`` first."""
    total = Project(
        "all", "", sum(p.queued for p in projects), sum(p.running for p in projects), any(p.capped for p in projects)
    )
    shown: list[tuple[Project, str | None]] = [(total, None)]
    if len(projects) > 1 or (projects and projects[0].raw):
        shown += [(item, item.raw) for item in projects]
    return [
        (
            f" {fit(item.name, min(cell_len(item.name), 24))} ",
            f" {units.count(item.queued + item.running)}{'+' if item.capped else ''} ",
            raw,
        )
        for item, raw in shown
    ]


@lru_cache(maxsize=8)
def _wanted(projects: tuple[Project, ...], width: int) -> int:
    """How many cells the title and all tabs of projects would take."""
    return len(_title(width)) + 3 + sum(cell_len(name) + len(number) for name, number, _ in _chips(projects))


@lru_cache(maxsize=8)  # of all that stands in the header only the clock changes every second
def _left(
    projects: tuple[Project, ...],
    project: str | None,
    pages: tuple[tuple[str, str], ...],
    page: str,
    wordy: bool,
    width: int,
    room: int,
) -> tuple[tuple[Span, ...], Tabs]:
    """Title, pages and tabs of projects in ``room`` cells."""
    row = Row(width).add(_title(width), "title").add(" ")
    tabs = Tabs()
    for text, style, name in _page_chips(pages, page, wordy):
        start = row.used
        row.add(text, style)
        if name:
            tabs.pages.append((start, row.used, name))
    row.add(" ")
    chips = _chips(projects)
    for index, (name, number, raw) in enumerate(chips):
        if row.used + cell_len(name) + len(number) > room - (0 if index == len(chips) - 1 else 4):
            row.add(f" +{len(chips) - index}", "dim")
            break
        start = row.used
        active = raw == project
        row.add(name, "bright+r" if active else "dim").add(number, "warn" if active else "faint")
        tabs.places.append((start, row.used, raw))
    return tuple(row.spans), tabs


@lru_cache(maxsize=16)
def _page_chips(pages: tuple[tuple[str, str], ...], page: str, wordy: bool) -> list[tuple[str, str, str]]:
    """(text, style, name) of each page; without room for words only this one has its name. A page without a number
    stands behind them."""
    chips = []
    for key, name in pages:
        here = name == page
        text = f" {key} {name}" + (" " if wordy else "") if wordy or here else f" {key}"
        chips.append((text, "info+b" if here else "dim", name))
    if page not in {name for _, name in pages}:
        chips.append((f" {page} ", "info+b", ""))
    return chips


def _tail(scene: Scene, level: int, store: str, frozen_s: float | None, read_only: bool) -> list[Span]:
    """The right side; level 0 in full, 1 without the database's name, 2 in short words, 3 the least."""
    deck = scene.deck
    parked, draining, down = deck.standing()
    parts: list[list[Span]] = []
    if deck.leaderless():
        parts.append([(" NO LEADER ", "banner")])
    if scene.played is not None:
        parts.append([(f" REPLAY {scene.played()} ", "info+r")])
    elif read_only:
        parts.append([("read-only" if level < 3 else "ro", "info")])
    unseen = len(scene.alerts.unseen()) if scene.alerts is not None else 0
    if unseen:
        parts.append([(f"{unseen} alert{'s' if unseen > 1 else ''}" if level < 2 else f"!{unseen}", "bad+b")])
    if down:
        parts.append([(f"{down} down", "bad+b")])
    asking = sum(item.awaiting for item in deck.projects() if scene.project in (None, item.raw))
    if asking:
        words = f" {units.count(asking)} wait{'s' if asking == 1 else ''}{' for you' if level < 2 else ''}"
        parts.append([("W", "key"), (words, "accent+b")])
    lanes = "" if level >= 2 else " lane" if parked == 1 else " lanes"
    parts.append([(f"{parked}{lanes} parked".rjust(9 if level >= 2 else 15), "warn" if parked else "faint")])
    if level < 3:
        parts.append([(f"{draining} draining".rjust(11), "warn" if draining else "faint")])
    parts.append([(scene.window.name.rjust(3), "faint" if scene.window.span_s == HOUR_S else "info")])
    fresh = _live(scene, frozen_s)
    if fresh[0]:
        parts.append([fresh])
    clock = clock_of(deck.clock.wall())
    parts.append([(clock if level < 3 or scene.played is not None else clock[:5], "dim")])
    if level == 0 and store:
        parts.append([(fit(store, min(cell_len(store), 28)), "faint")])
    line: list[Span] = []
    for part in parts:
        line += [*part, ("  ", "text")]
    line[-1] = (" ", "text")
    return line


def _live(scene: Scene, frozen_s: float | None) -> Span:
    """How fresh the picture is, in cells that do not move."""
    deck = scene.deck
    at = scene.at()
    if at is not None:
        days = "%a " if scene.window.span_s > 86_400 else ""
        return f" SCRUB {at.astimezone().strftime(days + '%H:%M:%S')} ", "info+r"
    if frozen_s is not None:
        return f"FROZEN {units.age(frozen_s)}".rjust(12), "info+r"
    state, age = deck.link.state, deck.live_age()
    if state == "lost":
        return "LOST".rjust(8), "bad+b"
    if age is None:
        return "connecting"[:8].rjust(8), "info"
    if scene.played is not None:
        return "", "dim"
    if age < 3.0:
        return "live".rjust(8), "ok"
    return f"live {units.age(age)}".rjust(8), "warn"


def banner_line(deck: Deck, width: int) -> Line | None:
    """Shown while the database is away: since when, what it said, when the next try is. None: all is well."""
    link = deck.link
    if link.state == "live" or (link.state == "connecting" and not deck.loaded and not link.error):
        return None
    now = deck.clock.mono()
    row = Row(width)
    if link.state == "connecting":
        row.add(" CONNECTING ", "banner")
    else:
        row.add(" DATABASE LOST " if deck.loaded else " NO DATABASE ", "banner")
        if link.lost_since is not None:
            row.add(f" {units.age(now - link.lost_since)} ago", "bad+b")
        if link.next_try_mono is not None:
            left = link.next_try_mono - now
            row.add(f"   next try {f'in {units.age(left)}' if left >= 1.0 else 'now'}", "text")
    if deck.loaded:
        row.add(f"   data of {units.age(deck.live_age())} ago", "text")
    if link.error:
        row.add(f"   {link.error}", "dim")
    return row.done()


def event_line(deck: Deck, events: Sequence[Event], width: int, message: Span | None) -> Line:
    """What happened last, newest first; the answer to the operator's own order stands before it for a while."""
    row = Row(width).add(" ")
    if message is not None:
        row.add(message[0], message[1])
    telling = [event for event in events if event.kind != "completed"] or events
    first = message is None
    for event in telling:
        where = " ".join(part for part in (event.box, event.queue) if part)
        text = event.text.removeprefix(f"{where}: ")
        size = 9 + cell_len(where) + (2 if where else 0) + cell_len(text)
        if not first and row.used + 3 + size > width:
            break  # whole or not at all
        row.add("" if first else "   ").add(clock_text(event), "faint").add(" ")
        row.add(where, "text").add("  " if where else "").add(text, event_tone(event))
        first = False
    if not events and message is None:
        row.add("no events yet" if deck.loaded else "waiting for the database", "faint")
    return row.done()


def clock_text(event: Event) -> str:
    return clock_of(event.at) if event.at is not None else "--:--:--"


def clock_of(at: datetime) -> str:
    """``14:03:22`` in the reader's zone. No strftime: it asks the file system about the zone each time."""
    at = at.astimezone()
    return f"{at.hour:02}:{at.minute:02}:{at.second:02}"


def event_tone(event: Event) -> str:
    if event.kind in ("failed", "trip", "lost_claim", "refused", "stale_write"):
        return "bad"
    if event.kind in ("requeued", "stall_suspected", "unplaceable", "cancelled", "park", "cordon"):
        return "bad" if event.cause in ("executor_died", "lane_lost", "lease_lapsed") else "warn"
    return "ok" if event.kind in ("completed", "resume") else "dim"


def key_line(hints: Sequence[tuple[str, str]], width: int, right: str = "") -> Line:
    """The keys that work here. Where they do not all fit, the last two (help, quit) stay and the others go from behind."""
    sizes = [len(key) + len(word) + 5 for key, word in hints]
    room = width - 1 - (cell_len(right) + 1 if right else 0)
    kept = list(range(len(hints)))
    while len(kept) > 2 and sum(sizes[index] for index in kept) > room:
        del kept[-3]
    row = Row(width).add(" ")
    for index in kept:
        row.add(f" {hints[index][0]} ", "key").add(f" {hints[index][1]}  ", "dim")
    if right:
        row.right((right, "faint"), (" ", "text"))
    return row.done()
