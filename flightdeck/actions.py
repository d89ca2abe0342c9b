"""What a key does: one table. Key bindings, the command palette, the help and the key line are read from it.

An action that ``writes`` does not exist in read-only mode: no key, no entry, no hint. ``handler`` is the name of the
method of the app that does it.
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

    @property
    def handler(self) -> str:
        return f"do_{self.id}"


ACTIONS: tuple[Action, ...] = (
    Action("left", ("left", "h"), "h left", "Box to the left", "the box before this one", "move", palette=False),
    Action("down", ("down", "j"), "j down", "Down", "next lane or job of the box, then the box below", "move", palette=False),
    Action("up", ("up", "k"), "k up", "Up", "lane or job above, then the box above", "move", palette=False),
    Action("right", ("right", "l"), "l right", "Box to the right", "the box after this one", "move", palette=False),
    Action("next_lane", ("tab",), "tab", "Next lane", "cycles the lanes of the box", "move", palette=False),
    Action("previous_lane", ("shift+tab",), "shift+tab", "Previous lane", "cycles the lanes backwards", "move", palette=False),
    Action("toggle", ("space",), "space", "Park or resume the lane", "the selected lane; in all: every project's lane of that queue on the box", "lanes", True, True, "toggle"),
    Action("park", ("p",), "p", "Park the lane", "the selected lane stops claiming", "lanes", True, True, "park"),
    Action("resume", ("r",), "r", "Resume the lane", "the selected lane claims again", "lanes", True, False, "resume"),
    Action("park_all", ("P", "upper_p"), "P", "Park this queue on every box", "the selected queue, all boxes", "lanes", True, True, "all boxes"),
    Action("resume_all", ("R", "upper_r"), "R", "Resume this queue on every box", "the selected queue, all boxes", "lanes", True),
    Action("cordon", ("B", "upper_b"), "B", "Cordon or uncordon the box", "every lane of the box by one order; again removes that order", "lanes", True, True, "cordon"),
    Action("run_next", ("exclamation_mark",), "!", "Run a job next", "a queued job, by its id, before everything else", "jobs", True),
    Action("cancel", ("x",), "x", "Cancel the job", "the selected running job is asked to stop, hard after 10 s; its run fails", "jobs", True, True),
    Action("kill", ("X", "upper_x"), "X", "Kill and requeue the job", "its executor is killed, the job goes to the front of the queue, nothing spent", "jobs", True, True),
    Action("undo", ("u",), "u", "Undo", "takes back your last park, resume or cordon", "lanes", True, False, "undo"),
    Action("open", ("enter",), "enter", "Open the box", "this box alone, over the whole screen; again closes it", "view", hint="open"),
    Action("back", ("escape",), "esc", "Back", "closes the open box, clears the filter", "view", palette=False),
    Action("project_next", ("n",), "n", "Next project", "the next tab; lanes and jobs of that project alone", "view"),
    Action("project_previous", ("N", "upper_n"), "N", "Previous project", "the tab before", "view"),
    Action("fleet", ("1",), "1", "Fleet", "boxes next to each other", "view"),
    Action("jobs", ("2",), "2", "Jobs", "every running job of every box", "view", hint="jobs"),
    Action("events", ("4",), "4", "Events", "what happened, newest first", "view", hint="events"),
    Action("filter", ("slash",), "/", "Filter", "boxes, queues, models, projects and jobs by a word", "view", hint="filter"),
    Action("sort", ("s",), "s", "Sort boxes", "by name, by temperature, by throttling, by load", "view"),
    Action("freeze", ("f",), "f", "Freeze the picture", "data keeps coming, the view stands still until f again", "view"),
    Action("refresh", ("ctrl+l",), "ctrl+l", "Draw again", "repaints the screen and asks the database now", "view"),
    Action("theme", ("t",), "t", "Dark or light", "changes the colours", "view"),
    Action("palette", ("ctrl+p", "colon"), ": ctrl+p", "Commands", "every action by its name", "view", palette=False),
    Action("help", ("question_mark",), "?", "Help", "these pages", "view", hint="help"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "q", "Quit", "leaves the deck; lanes and jobs are not touched", "view", hint="quit"),
)  # fmt: skip

GROUPS = {"move": "Moving", "lanes": "Lanes and boxes", "jobs": "Jobs", "view": "Looking"}


def offered(read_only: bool) -> tuple[Action, ...]:
    """The actions that exist in this mode."""
    return tuple(action for action in ACTIONS if not (read_only and action.writes))


def by_id(name: str) -> Action:
    return next(action for action in ACTIONS if action.id == name)


def hints(actions: Iterable[Action]) -> list[tuple[str, str]]:
    """(key, word) for the key line, in the table's order."""
    return [(action.show, action.hint) for action in actions if action.hint]
