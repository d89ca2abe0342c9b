"""Help: every key that works in this mode, what the letters and words on the screen mean."""

from __future__ import annotations

from flightdeck.actions import GROUPS, PAGE_KEYS
from flightdeck.screens.sheet import Sheet
from flightdeck.widgets.lines import Line, Row

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
    ("x", "at the end of a trace: the box stopped reporting here"),
    ("n/a", "the hardware or driver does not offer it; the reason stands beside it"),
)


class HelpScreen(Sheet):
    """``page``: from where help was asked for; its keys come first."""

    PAGE = "help"
    PICKS = False
    ONLY = frozenset({*PAGE_KEYS, "back", "help", "theme", "refresh", "quit"})
    LOCAL_KEYS = (("j k", "scroll"), ("esc", "back"))

    def __init__(self, page: str = "fleet") -> None:
        super().__init__()
        self.of = page

    def rows(self, width: int) -> list[Line]:
        app = self.deck_app
        lines: list[Line] = []
        for group, title in GROUPS.items():
            actions = [action for action in app.actions if action.group == group]
            if not actions:
                continue
            lines += [Row(width).done(), Row(width).add(f"  {title}", "bright").done()]
            for action in actions:
                row = (
                    Row(width)
                    .add(f"    {action.show}", "info", 18)
                    .add(action.title, "text", 34)
                    .add(action.about, "dim")
                )
                lines.append(row.done())
        for title, table in (
            ("The state of a lane", WORDS),
            ("How a slot ends on purpose: its exit code", EXITS),
            ("The throttle strip and the traces", LETTERS),
        ):
            lines += [Row(width).done(), Row(width).add(f"  {title}", "bright").done()]
            lines += [Row(width).add(f"    {word}", "info", 18).add(text, "text").done() for word, text in table]
        if app.read_only:
            lines += [Row(width).done(), Row(width).add("  Read-only: nothing here changes the fleet.", "warn").done()]
        return lines
