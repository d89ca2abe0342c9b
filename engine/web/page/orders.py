"""Park and resume as the page offers them: a scope, what it is in words, whom it reaches now, and carrying it out.

Scopes are the deck's: a lane, a queue on every box, a box, everything; each of the projects that have lanes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from engine.display.text import clean, show_project
from engine.errors import BadInput, NotFound
from engine.orders import check_queue, parse_span
from engine.queue import operate
from engine.queue.texts import check_word
from engine.store import Db
from engine.web.page.fleet import Fleet, Lane, lanes_of

ACTIONS = {"park": "Park", "resume": "Resume", "cordon": "Cordon", "uncordon": "Uncordon"}
POLICIES = ("drain", "hard")
SPANS = (("", "until somebody resumes it"), ("30m", "30 minutes"), ("1h", "1 hour"), ("2h", "2 hours"), ("8h", "8 hours"), ("1d", "1 day"))  # fmt: skip
PROJECTS_MOST = 200
REASON_MOST = 400


@dataclass(frozen=True)
class Scope:
    """``box`` and ``queue`` as an order writes them, ``*`` is all; ``projects``: one order each."""

    action: str
    box: str
    queue: str
    projects: tuple[str, ...]

    def words(self) -> str:
        """``gpu on spark, project render``."""
        queue, box = clean(self.queue, 40), clean(self.box, 60)
        if self.queue == "*":
            where = "every lane of every box" if self.box == "*" else f"{box}, every lane"
        else:
            where = f"{queue} on every box" if self.box == "*" else f"{queue} on {box}"
        return where + projects_words(self.projects)


def order_url(back: str, action: str, box: str, queue: str, projects: Sequence[str] = ()) -> str:
    """The address of the question whether to do this, and where it leads back; without projects: of every project that
    has a lane there."""
    pairs = [("action", action), ("box", box), ("queue", queue), *(("project", project) for project in projects)]
    return f"/page/order?{urlencode([*pairs, ('back', back)], errors='replace')}"


def projects_words(projects: Sequence[str]) -> str:
    """``, project render``; nothing for the unnamed one alone."""
    shown = [show_project(project) for project in projects]
    if len(shown) == 1:
        return "" if shown == ["-"] else f", project {shown[0]}"
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f", all {len(shown)} projects: {', '.join(shown[:4])}{more}"


def read_scope(fields: Mapping[str, Sequence[str]], fleet: Fleet | None) -> Scope:
    """The scope that a form or an address names. Raises BadInput, and NotFound where no lane is and no project is named."""
    action = _one(fields, "action")
    box, queue = _one(fields, "box"), _one(fields, "queue")
    if action not in ACTIONS:
        raise BadInput(f"action: {', '.join(ACTIONS)}, not {clean(action, 40)!r}")
    check_word(box, "box")
    check_word(queue, "queue")
    if action in ("cordon", "uncordon") and (box == "*" or queue != "*"):
        raise BadInput(f"{action} is about every queue of one box")
    projects = tuple(dict.fromkeys(fields.get("project", ())))
    if not projects and fleet is not None:
        projects = tuple(sorted({lane.project for lane in lanes_of(fleet, box, queue, None)}))
    if not projects:
        raise NotFound("there is no such lane (any more)")
    if len(projects) > PROJECTS_MOST:  # some of them, silently, is not what was asked for
        raise BadInput(
            f"{len(projects)} projects have lanes there, an order names at most {PROJECTS_MOST}: take a box or a queue"
        )
    return Scope(action, box, queue, projects)


def _one(fields: Mapping[str, Sequence[str]], name: str) -> str:
    given = fields.get(name, ())
    if len(given) != 1 or not given[0]:
        raise BadInput(f"{name} is missing" if not given else f"{name} is there more than once")
    return given[0]


@dataclass(frozen=True)
class Reached:
    """The lanes of a scope as they are now, and what runs on them. ``busy`` may be more than the jobs that are listed."""

    lanes: tuple[Lane, ...]
    jobs: tuple[Mapping[str, Any], ...]
    busy: int


def reached(scope: Scope, fleet: Fleet) -> Reached:
    """Whom an order would be about."""
    lanes = [lane for lane in lanes_of(fleet, scope.box, scope.queue, scope.projects) if not lane.ended]
    keys = {(lane.box, lane.queue, lane.project) for lane in lanes}
    jobs = [job for job in fleet.jobs if (job["box"], job["queue"], job["project"]) in keys]
    return Reached(tuple(lanes), tuple(jobs), max(len(jobs), sum(lane.busy for lane in lanes)))


def read_span(fields: Mapping[str, Sequence[str]]) -> timedelta | None:
    """For how long a park holds; None: until it is resumed. Raises BadInput."""
    text = (fields.get("for_text", [""])[0] or fields.get("for", [""])[0]).strip()
    return parse_span(text, "for how long") if text else None


def carry_out(
    db: Db, scope: Scope, policy: str, reason: str, span: timedelta | None, requested_by: str
) -> tuple[int, str]:
    """Give the order for every project of the scope, all or none; how many changed something, and what was done in words."""
    if scope.action in ("park", "cordon") and policy not in POLICIES:
        raise BadInput(f"policy: drain or hard, not {clean(policy, 40)!r}")
    reason = reason.strip()[:REASON_MOST]
    check_queue(db, scope.queue)
    with db.transaction():
        until = db.now() + span if span is not None else None
        done = [_give(db, scope, project, policy, reason or None, until, requested_by) for project in scope.projects]
    changed = sum(one.changed for one in done)
    if len(done) == 1:
        return changed, done[0].message
    how = f" ({policy})" if scope.action in ("park", "cordon") else ""
    some = f": {changed} of {len(done)} orders changed something" if changed < len(done) else ""
    return changed, f"{ACTIONS[scope.action].lower()} {scope.words()}{how}{some or ': ordered'}"


def _give(
    db: Db, scope: Scope, project: str, policy: str, reason: str | None, until: Any, requested_by: str
) -> operate.Done:
    whose: dict[str, Any] = {"box": scope.box, "project": project, "requested_by": requested_by}
    if scope.action == "park":
        return operate.park(db, queue=scope.queue, policy=policy, reason=reason, until=until, **whose)
    if scope.action == "cordon":
        return operate.cordon(db, policy=policy, reason=reason, until=until, **whose)
    if scope.action == "uncordon":
        return operate.uncordon(db, **whose)
    return operate.resume(db, queue=scope.queue, reason=reason, **whose)
