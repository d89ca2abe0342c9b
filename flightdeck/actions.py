"""What a key does: one table. Key bindings, the command palette, the help and the key line are read from it.

An action that ``writes`` does not exist in read-only mode: no key, no entry, no hint; ``flightdeck.operating`` does it.
The others are done by ``flightdeck.looking``. ``pages`` says where an action means something; elsewhere its key does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do."""

    id: str
    keys: tuple[str, ...]  # as Textual names them
    show: str  # as people read them
    title: str
    about: str  # scope and effect, for help and palette
    group: str
    writes: bool = False
    asks: bool = False  # asks once where work would be interrupted
    hint: str = ""  # the word on the key line; empty: not there
    palette: bool = True
    pages: tuple[str, ...] = ()  # names of the pages (screens.pages) that offer it; empty: all
    hint_on: tuple[str, ...] = ()  # pages whose key line names it; empty: all that offer it
    hint_key: str = ""  # what stands for the key there, where one hint tells of two keys

    @property
    def handler(self) -> str:
        return f"do_{self.id}"


LANES = ("fleet", "box")  # where a lane is under the cursor
SERVED = (*LANES, "queues")  # or a queue
JOBS = ("fleet", "box", "jobs", "job", "events", "queues", "throttle")  # where a job can be
LISTS = ("jobs", "job")
OVERVIEW = ("fleet",)
BOX = ("box",)
TRACES = ("fleet", "box", "throttle")
SORTED = ("fleet", "jobs", "throttle", "queues")
FILTERED = (*SORTED, "events")

ACTIONS: tuple[Action, ...] = (
    Action("left", ("left", "h"), "h left", "Box to the left", "the box before this one", "move", palette=False, pages=OVERVIEW),
    Action("down", ("down", "j"), "j down", "Down", "next lane or job of the box, then the box below", "move", palette=False, pages=OVERVIEW),
    Action("up", ("up", "k"), "k up", "Up", "lane or job above, then the box above", "move", palette=False, pages=OVERVIEW),
    Action("right", ("right", "l"), "l right", "Box to the right", "the box after this one", "move", palette=False, pages=OVERVIEW),
    Action("next_lane", ("tab",), "tab", "Next lane", "cycles the lanes of the box", "move", palette=False, pages=LANES),
    Action("previous_lane", ("shift+tab",), "shift+tab", "Previous lane", "cycles the lanes backwards", "move", palette=False, pages=LANES),
    Action("toggle", ("space",), "space", "Park or resume the lane", "the selected lane; in all: every project's lane of that queue on the box", "lanes", True, True, "toggle", pages=LANES),
    Action("park", ("p",), "p", "Park the lane", "the selected lane stops claiming; on queues: that queue of that project, every box", "lanes", True, True, "park", pages=SERVED),
    Action("resume", ("r",), "r", "Resume the lane", "the selected lane claims again; on queues: that queue of that project, every box", "lanes", True, False, "resume", pages=SERVED),
    Action("park_all", ("P", "upper_p"), "P", "Park this queue on every box", "the selected queue, all boxes, of every project of the tab", "lanes", True, True, "all boxes", pages=SERVED, hint_on=LANES),
    Action("resume_all", ("R", "upper_r"), "R", "Resume this queue on every box", "the selected queue, all boxes, of every project of the tab", "lanes", True, pages=SERVED),
    Action("cordon", ("B", "upper_b"), "B", "Cordon or uncordon the box", "every lane of the box by one order; again removes that order", "lanes", True, True, "cordon", pages=LANES),
    Action("run_next", ("exclamation_mark",), "!", "Run a job next", "the chosen queued job, else one by its id, before everything else", "jobs", True, hint="run next", hint_on=LISTS),
    Action("cancel", ("x",), "x", "Cancel the job", "it is asked to stop, hard after 10 s; a node's run fails with it", "jobs", True, True, "cancel", pages=JOBS, hint_on=LISTS),
    Action("kill", ("X", "upper_x"), "X", "Kill and requeue the job", "its executor is killed, the job goes to the front, nothing spent", "jobs", True, True, "kill", pages=JOBS, hint_on=LISTS),
    Action("retry", ("e",), "e", "Run a failed job again", "a new run or job; what had finished is taken over", "jobs", True, False, "retry", pages=JOBS, hint_on=LISTS),
    Action("undo", ("u",), "u", "Undo", "takes back your last park, resume or cordon", "lanes", True),
    Action("preload", (), "", "Load a model", "into a free slot of the selected box's gpu lane", "lanes", True, pages=LANES),
    Action("unload", (), "", "Unload a model", "from the selected box's gpu lane; its memory is free again", "lanes", True, pages=LANES),
    Action("open", ("enter",), "enter", "Open the box or the job", "what is under the cursor, over the whole screen", "view", hint="open", pages=OVERVIEW),
    Action("next_gpu", ("g",), "g", "Next GPU", "the next tab of this box", "view", pages=BOX),
    Action("previous_gpu", ("G", "upper_g"), "G", "Previous GPU", "the tab before", "view", pages=BOX),
    Action("next_chart", ("c",), "c", "Other charts", "turns the charts of this box on by one", "view", pages=BOX),
    Action("previous_chart", ("C", "upper_c"), "C", "Charts before", "turns them back", "view", pages=BOX),
    Action("back", ("escape",), "esc", "Back", "lets go of the scrubbed instant, clears the filter, leaves the page", "view", palette=False),
    Action("project_next", ("n",), "n", "Next project", "the next tab; lanes and jobs of that project alone", "view"),
    Action("project_previous", ("N", "upper_n"), "N", "Previous project", "the tab before", "view"),
    Action("fleet", ("1",), "1", "Fleet", "boxes next to each other", "pages"),
    Action("jobs", ("2",), "2", "Jobs", "jobs of every box", "pages"),
    Action("throttle", ("3",), "3", "Throttling", "who was held back, when and why", "pages"),
    Action("events", ("4",), "4", "Events", "what happened, newest first", "pages"),
    Action("queues", ("5",), "5", "Queues", "what waits, and who could take it", "pages"),
    Action("asking", ("W", "upper_w"), "W", "What waits for you", "jobs page: the nodes that wait for a person's answer", "view"),
    Action("narrower", ("left_square_bracket",), "[", "Shorter time", "10 minutes, an hour, 6 hours, 24 hours, 7 days; for all traces", "time", hint="span", hint_key="[ ]", hint_on=TRACES),
    Action("wider", ("right_square_bracket",), "]", "Longer time", "the same, the other way", "time"),
    Action("scrub_back", ("comma",), ",", "Look back", "the picture stands; every trace says its value at that instant", "time", hint="scrub", hint_key=", .", hint_on=TRACES),
    Action("scrub_on", ("full_stop",), ".", "Look forward", "towards now; past it, or with esc, time goes on", "time"),
    Action("freeze", ("f",), "f", "Freeze the picture", "data keeps coming, the view stands still until f again", "time"),
    Action("seen", ("a",), "a", "Acknowledge alerts", "all that are open count as seen; they stay on the events page", "view"),
    Action("filter", ("slash",), "/", "Filter", "what is on this page, by words", "view", hint="filter", pages=FILTERED),
    Action("sort", ("s",), "s", "Sort", "boxes by name, heat, throttling or load; lists by their columns", "view", pages=SORTED),
    Action("refresh", ("ctrl+l",), "ctrl+l", "Draw again", "repaints the screen and asks the database now", "view"),
    Action("theme", ("t",), "t", "Dark or light", "changes the colours", "view"),
    Action("palette", ("ctrl+p", "colon"), ": ctrl+p", "Commands", "every action by its name", "view", palette=False),
    Action("help", ("question_mark",), "?", "Help", "these pages", "view", hint="help"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "q", "Quit", "leaves the deck; lanes go on (`up` asks; a demo ends)", "view", hint="quit"),
)  # fmt: skip

# Only while a recording is played back.
REPLAY: tuple[Action, ...] = (
    Action("play", ("space",), "space", "Stop or go on", "the recording stands, or plays on; at its end: from the start", "replay", hint="pause"),
    Action("faster", ("plus", "equals_sign"), "+", "Faster", "up to 64 times", "replay", hint="faster"),
    Action("slower", ("minus",), "-", "Slower", "down to a quarter", "replay"),
    Action("earlier", ("left_curly_bracket",), "{", "A minute back", "in the recording", "replay", hint="back"),
    Action("later", ("right_curly_bracket",), "}", "A minute on", "in the recording", "replay", hint="on"),
    Action("goto", ("at",), "@", "Go to a time", "of the recording: 14:03:22, 90s, +1m, start, end", "replay", hint="go to"),
)  # fmt: skip

GROUPS = {
    "replay": "The recording",
    "move": "Moving",
    "lanes": "Lanes and boxes",
    "jobs": "Jobs",
    "pages": "Pages",
    "time": "Time",
    "view": "Looking",
}
PAGE_KEYS = {action.id: action.show for action in ACTIONS if action.group == "pages"}


def offered(read_only: bool, pages: Iterable[str] = PAGE_KEYS) -> tuple[Action, ...]:
    """The actions that exist in this mode, with these pages."""
    there = set(pages)
    return tuple(
        action
        for action in ACTIONS
        if not (read_only and action.writes) and (action.group != "pages" or action.id in there)
    )


def on_page(actions: Iterable[Action], page: str) -> list[Action]:
    """Those that mean something on a page."""
    return [action for action in actions if not action.pages or page in action.pages]


def by_id(name: str) -> Action:
    return next(action for action in ACTIONS if action.id == name)


def hints(actions: Iterable[Action], page: str) -> list[tuple[str, str]]:
    """(key, word) for the key line of a page, in the table's order."""
    return [
        (action.hint_key or action.show, action.hint)
        for action in on_page(actions, page)
        if action.hint and (not action.hint_on or page in action.hint_on)
    ]
