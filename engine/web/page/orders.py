"""Park and resume as the page offers them: a scope, what it is in words, whom it reaches now, and carrying it out.

Scopes are the deck's: a lane, a queue on every box, a box, everything; each of the projects that have lanes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from engine.display.text import clean
from engine.errors import BadInput, NotFound
from engine.orders import check_queue, parse_span
from engine.queue import operate
from engine.queue.texts import check_word
from engine.store import Db
from engine.web.page.fleet import Fleet, Lane, lanes_of, project_name

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
        return place_words(self.box, self.queue) + projects_words(self.projects)


def place_words(box: str, queue: str) -> str:
    """``gpu on spark``, ``gpu on every box``, ``spark, every lane``."""
    if queue == "*":
        return "every lane of every box" if box == "*" else f"{clean(box, 60)}, every lane"
    return f"{clean(queue, 40)} on " + ("every box" if box == "*" else clean(box, 60))


def order_url(back: str, action: str, box: str, queue: str, projects: Sequence[str] = ()) -> str:
    """The address of the question whether to do this, and where it leads back; without projects: of every project that
    has a lane there."""
    pairs = [("action", action), ("box", box), ("queue", queue), *(("project", project) for project in projects)]
    return f"/page/order?{urlencode([*pairs, ('back', back)], errors='replace')}"


def projects_words(projects: Sequence[str]) -> str:
    """``, project render``; nothing for the unnamed one alone."""
    if len(projects) == 1:
        return f", project {project_name(projects[0])}" if projects[0] else ""
    shown = [project_name(project) for project in projects]
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


@dataclass(frozen=True)
class Standing:
    """An order that holds lanes of a scope off: where, whose, and what its giver said. Times are aware; None: not set."""

    box: str
    queue: str
    project: str
    policy: str
    by: str
    reason: str
    at: datetime | None
    until: datetime | None

    def where(self) -> str:
        """``gpu on spark, project render``."""
        return place_words(self.box, self.queue) + projects_words([self.project])


def taken_back(scope: Scope, orders: Sequence[Mapping[str, Any]]) -> list[Standing]:
    """The orders off that end with a resume or an uncordon of this scope, newest first; ``orders``: newest first.

    A wider order ends for the lanes of the scope alone. What a newer order covers has no say any more.
    """
    if scope.action == "uncordon":
        return [_standing(row) for row in orders if _is_cordon(scope, row) and row["desired"] == "off"]
    return _hold_off(scope, orders)


def left_off(scope: Scope, orders: Sequence[Mapping[str, Any]]) -> list[Standing]:
    """The earlier orders off that count again after an uncordon."""
    return _hold_off(scope, [row for row in orders if not _is_cordon(scope, row)]) if scope.action == "uncordon" else []


def _is_cordon(scope: Scope, row: Mapping[str, Any]) -> bool:
    return row["box"] == scope.box and row["queue"] == "*" and row["project"] in scope.projects


def _hold_off(scope: Scope, orders: Sequence[Mapping[str, Any]]) -> list[Standing]:
    """The orders off of a scope but for those that a newer order covers wholly, as far as the scope goes."""
    found: list[Standing] = []
    newer: list[Mapping[str, Any]] = []
    for row in orders:
        if row["project"] not in scope.projects:
            continue
        box, queue = _meet(row["box"], scope.box), _meet(row["queue"], scope.queue)
        if box is None or queue is None:
            continue
        covered = any(
            one["project"] == row["project"] and one["box"] in ("*", box) and one["queue"] in ("*", queue)
            for one in newer
        )
        newer.append(row)
        if row["desired"] == "off" and not covered:
            found.append(_standing(row))
    return found


def _meet(one: str, other: str) -> str | None:
    """What two names have in common, of which ``*`` is all; None: nothing."""
    if one == "*" or one == other:
        return other
    return one if other == "*" else None


def _standing(row: Mapping[str, Any]) -> Standing:
    return Standing(
        row["box"], row["queue"], row["project"], row["policy"], clean(row["requested_by"], 60), clean(row["reason"], 400),
        row["updated_at"], row["until"],
    )  # fmt: skip


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
