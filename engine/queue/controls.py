"""worker_controls: what is wanted of a lane. The newest matching row is the order; none means on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from engine.errors import BadInput
from engine.store import Db


@dataclass(frozen=True)
class Order:
    """What is wanted of one lane, and who wanted it. ``until`` and ``updated_at`` are aware; None = not set."""

    desired: str = "on"
    policy: str = "hard"
    reason: str | None = None
    until: datetime | None = None
    requested_by: str | None = None
    updated_at: datetime | None = None
    box: str | None = None  # the row that decided; "*" = every box, every queue
    queue: str | None = None


_NO_ORDER = Order()
_FIELDS = "box, queue, project, desired, policy, reason, until, requested_by, updated_at"
HOLDING = f"select {_FIELDS} from worker_controls where until is null or until > {{clock}} order by updated_at desc"


def order_for(db: Db, box: str, queue: str, project: str) -> Order:
    """The order that holds for one lane now: the newest row that names it or a ``*``, unless past its ``until``."""
    row = db.one(
        f"select {_FIELDS} from worker_controls where box in ({{box}}, '*') and queue in ({{queue}}, '*') "
        "and project = {project} and (until is null or until > {clock}) order by updated_at desc limit 1",
        box=box,
        queue=queue,
        project=project,
    )
    return _order(row) if row else Order()


def all_orders(db: Db) -> list[dict[str, Any]]:
    """Every row that still holds, newest first: for a view of many lanes (see :func:`pick`)."""
    return db.all(HOLDING)


def pick(orders: Iterable[Mapping[str, Any]], box: str, queue: str, project: str) -> Order:
    """The order for one lane out of rows that are sorted newest first."""
    for row in orders:
        if row["box"] in (box, "*") and row["queue"] in (queue, "*") and row["project"] == project:
            return _order(row)
    return _NO_ORDER


def set_order(
    db: Db,
    box: str,
    queue: str,
    project: str,
    *,
    desired: str,
    policy: str = "hard",
    reason: str | None = None,
    until: datetime | None = None,
    requested_by: str | None = None,
) -> None:
    """Write one order; it becomes the newest, also past a clock that stepped back or one that counts milliseconds.

    A trigger of the table tells the lanes. Raises BadInput for an unknown state, policy or a time without zone.
    """
    if desired not in ("on", "off"):
        raise BadInput(f"desired must be on or off, got {desired!r}")
    if policy not in ("hard", "drain"):
        raise BadInput(f"policy must be hard or drain, got {policy!r}")
    if until is not None and until.tzinfo is None:
        raise BadInput(f"until must carry a time zone, got {until.isoformat()}")
    with db.transaction():
        # An order from the end of time ('infinity') would be the newest for ever.
        db.run("update worker_controls set updated_at = {clock} where updated_at >= '9999-01-01'")
        stamp = db.value("select {clock} as at")
        newest = db.value("select max(updated_at) as updated_at from worker_controls")
        if newest is not None and newest >= stamp:
            stamp = newest + timedelta(microseconds=1)
        db.run(
            f"insert into worker_controls ({_FIELDS}) values ({{box}}, {{queue}}, {{project}}, {{desired}}, {{policy}}, "
            "{reason}, {until}, {requested_by}, {stamp}) on conflict (box, queue, project) do update set "
            "desired = excluded.desired, policy = excluded.policy, reason = excluded.reason, until = excluded.until, "
            "requested_by = excluded.requested_by, updated_at = excluded.updated_at",
            box=box,
            queue=queue,
            project=project,
            desired=desired,
            policy=policy,
            reason=reason,
            until=until,
            requested_by=requested_by,
            stamp=stamp,
        )


def clear_order(db: Db, box: str, queue: str, project: str) -> bool:
    """Remove one order, so that earlier ones count again. False: there was none."""
    return (
        db.run(
            "delete from worker_controls where box = {box} and queue = {queue} and project = {project}",
            box=box,
            queue=queue,
            project=project,
        )
        == 1
    )


def standing(db: Db, box: str, queue: str, project: str) -> Order | None:
    """The row of exactly this key if no newer row overlaps it: writing the same again would change nothing."""
    row = db.one(
        f"select {_FIELDS} from worker_controls where box = {{box}} and queue = {{queue}} and project = {{project}} "
        "and (until is null or until > {clock})",
        box=box,
        queue=queue,
        project=project,
    )
    if row is None:
        return None
    overlapping = db.one(
        "select 1 as found from worker_controls where project = {project} and updated_at > {stamp} "
        "and (box = {box} or box = '*' or {box} = '*') and (queue = {queue} or queue = '*' or {queue} = '*') limit 1",
        box=box,
        queue=queue,
        project=project,
        stamp=row["updated_at"],
    )
    return None if overlapping else _order(row)


def lanes_at(db: Db, box: str, queue: str) -> list[dict[str, Any]]:
    """Lanes of every project at a place (``*``: every box, every queue) that have not ended: {box, queue, project, order}."""
    orders = all_orders(db)
    rows = db.all(
        "select box, queue, project from worker_heartbeats where ({box} = '*' or box = {box}) "
        "and ({queue} = '*' or queue = {queue}) and state <> 'stopping' order by project, box, queue",
        box=box,
        queue=queue,
    )
    return [
        {**row, "order": pick(orders, row["box"], row["queue"], row["project"])}
        for row in rows
        if all(isinstance(name, str) for name in row.values())  # SQLite takes bytes
    ]


def projects_at(db: Db, box: str, queue: str) -> list[str]:
    """Projects that have a lane at a place, or an order that holds lanes of it off."""
    off = {
        row["project"]
        for row in all_orders(db)
        if row["desired"] == "off" and box in (row["box"], "*") and queue in (row["queue"], "*")
        if isinstance(row["project"], str)
    }
    return sorted(off | {lane["project"] for lane in lanes_at(db, box, queue)})


def _order(row: Mapping[str, Any]) -> Order:
    return Order(
        desired=row["desired"],
        policy=row["policy"],
        reason=row["reason"],
        until=row["until"],
        requested_by=row["requested_by"],
        updated_at=row["updated_at"],
        box=row["box"],
        queue=row["queue"],
    )
