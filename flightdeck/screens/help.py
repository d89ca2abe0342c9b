"""Help: every key that works in this mode, what the letters and words on the screen mean."""

from __future__ import annotations

from collections.abc import Sequence

from flightdeck.actions import GROUPS, PAGE_KEYS, on_page
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row, wrap

KEY_CELLS, TITLE_CELLS = 18, 32

WORDS = (
    ("ON", "the lane claims jobs"),
    ("parking...", "it was ordered off and has not said parked yet"),
    ("PARKED", "the lane itself says that it is parked; it stays up and resumes in place"),
    ("draining n", "n running jobs end, nothing new is taken"),
    ("resuming...", "it was ordered on and has not said running yet"),
    ("DOWN", "no heartbeat for 30 s; its jobs go to other lanes"),
    ("ended", "it was stopped in order and gave back what it had"),
    ("REFUSED", "the lane may not run here; the reason is on its row"),
    ("2 of 3 ON", "in all: lanes of several projects that stand differently"),
)
MARKS = (
    ("!", "before a job's name: somebody ordered that it runs next, before everything else (the key ! does)"),
    ("stopping", "it was asked to stop, and is killed after 10 s"),
)
EXITS = (
    ("75", "over its budget: a cpu or ingest job ran longer than its wall clock allows"),
    ("76", "stalled: a gpu node stopped beating, its GPU and its memory stood still"),
    ("77", "lost its claim: the job is somebody else's now; nothing of this run counts"),
    ("78", "gpu idle: the GPU did nothing for a whole window, and nothing else of the job did"),
    ("79", "stopped by an operator: the job is queued again, nothing is spent"),
)
LETTERS = (
    ("P", "power: the chip runs at its power cap; normal under full load"),
    ("T", "thermal: it is too hot and slows down"),
    ("B", "brake: the power supply pulled the clocks down; x4 counts how often"),
    ("C", "the processor throttles"),
    ("S", "sync boost: GPUs wait for the slowest of them"),
    ("~", "sampled from a mask, not counted by the hardware"),
    (".", "sampled, nothing held it back; blank: no sample"),
    ("dots", "the limit that the hardware itself told: slowdown temperature, power limit"),
    ("x", "at the end of a trace: the box stopped reporting here"),
    ("n/a", "the hardware or driver does not offer it; the reason stands beside it"),
)


class HelpScreen(Sheet):
    """``page``: from where help was asked for; its keys come first."""

    PAGE = "help"
    PICKS = False
    ONLY = frozenset({*PAGE_KEYS, "back", "help", "theme", "refresh", "quit"})
    LOCAL_KEYS = (("j k", "scroll"), ("esc", "back"))

    def __init__(self, page: str = "fleet", local: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self.of = page
        self.local = tuple(local)

    def rows(self, width: int) -> list[Line]:
        app = self.deck_app
        found = on_page(app.actions, self.of)
        lines: list[Line] = []
        if self.local:
            lines += [Row(width).add(f"  On the page {self.of}", "bright").done()]
            lines += [Row(width).add(f"    {key}", "info", 18).add(word, "text").done() for key, word in self.local]
        for group, title in GROUPS.items():
            actions = [action for action in found if action.group == group]
            if actions:
                lines += [Row(width).done(), Row(width).add(f"  {title}", "bright").done()]
            for action in actions:
                lines += _entry(width, action.show, action.title, action.about)
        for title, table in (
            ("The state of a lane", WORDS),
            ("A job", MARKS),
            ("How a slot ends on purpose: its exit code", EXITS),
            ("The throttle strip and the traces", LETTERS),
        ):
            lines += [Row(width).done(), Row(width).add(f"  {title}", "bright").done()]
            for word, text in table:
                lines += _meaning(width, word, text)
        if app.read_only:
            lines += [Row(width).done(), Row(width).add("  Read-only: nothing here changes the fleet.", "warn").done()]
        return lines


def _entry(width: int, key: str, title: str, about: str) -> list[Line]:
    """A key and what it does; what does not fit goes on below."""
    first, *more = wrap(about, max(20, width - KEY_CELLS - TITLE_CELLS - 1))
    row = Row(width).add(f"    {key}", "info", KEY_CELLS).add(title, "text", TITLE_CELLS).add(first, "dim")
    indent = KEY_CELLS + TITLE_CELLS
    return [row.done(), *(Row(width).to(indent).add(text, "dim").done() for text in more)]


def _meaning(width: int, word: str, text: str) -> list[Line]:
    first, *more = wrap(text, max(20, width - KEY_CELLS - 1))
    row = Row(width).add(f"    {word}", "info", KEY_CELLS).add(first, "text")
    return [row.done(), *(Row(width).to(KEY_CELLS).add(part, "text").done() for part in more)]
