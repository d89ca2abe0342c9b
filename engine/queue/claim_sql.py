"""The claim statement for PostgreSQL: which rows, in which order, flat however long the queue and its walls.

A *class* is (model, place); place folds only_boxes and avoid_boxes into one text, '' = anywhere. Whether this slot may
take a row is decided once per class by a recursive loose scan of the index, never per row, so that 50,000 rows for
another box cost one index descent. The classes' first rows are candidates (ctid and sort keys only); they are merged
in order and locked one row at a time until n are ours.

What was measured, and must stay so:
- a naive ORDER BY with filters: 24 ms behind a wall of 50,000, 330 ms for model affinity at 100,000; this form 0.8-2 ms;
- FOR UPDATE inside LATERAL cannot be flattened: a nested loop and TID scan whatever the estimates say;
- inner limits are literals: as parameters the generic plan sorts everything (12 ms at 10,000 rows). So is the status;
- the final UPDATE goes by id, not ctid: a row that somebody touched meanwhile has moved;
- ``fin`` must run before the claim in the fused statement, or lanes deadlock: SKIP LOCKED does not skip a row that was
  claimed and committed since our snapshot, it locks the new version until we commit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from engine.queue.family import LIVE_RUN, NODE, Family
from engine.queue.floor import FAR

DUE_LOOK = 32  # scheduled rows that are due are taken from so many of each class
CAP_FACTOR = 32  # unconstrained rows are read lazily, so that their look-ahead may be long

# An UPDATE that assigns to no base column of a generated column makes PostgreSQL 18 parse the stored text of all
# generation expressions again for every row: 80 us a row against 40 with one assignment that changes nothing.
KEEP_GENERATED = "priority = j.priority"

CLAIMED = (
    "j.id, j.fencing_token, j.attempt, j.{name} as name, {run} {payload}::text as payload, {model} as required_model, "
    "j.priority, j.is_priority, j.queue, j.project, j.budget_s, j.failures, j.max_attempts, j.watchdog_retries, j.losses"
)


class _Shape:
    """The fragments of one family's statement; ``by_model``: a gpu lane, whose classes have a model."""

    def __init__(self, family: Family, by_model: bool, newest: bool) -> None:
        self.table = family.table
        self.by_model = by_model
        self.newest = newest
        self.fixed_model = " and j.model_key = ''" if family is NODE and not by_model else ""
        self.here = (
            f"j.queue = {{queue}} and j.project = {{project}} and j.status = 'queued' and j.run_after is null"
            f"{self.fixed_model}"
        )
        self.later = (
            f"j.queue = {{queue}} and j.project = {{project}} and j.status = 'queued' and j.run_after is not null"
            f"{self.fixed_model}"
        )
        self.keys = "j.ctid as tid, j.band, j.created_at, j.id" + (", j.model_key" if by_model else "")
        self.age = "created_at desc, id desc" if newest else "created_at, id"
        # A flagged row's band is a million lower, so that run-next comes before warmth and warmth before priority.
        warm = "(c.band < -500000) desc, (c.model_key = {loaded} or c.created_at <= {before[wait_s]}) desc, "
        self.order = (warm if by_model else "") + "c.band, " + ", ".join(f"c.{part}" for part in self.age.split(", "))

    def same_class(self, of: str) -> str:
        return f"j.place = {of}.place" + (f" and j.model_key = {of}.model_key" if self.by_model else "")

    def loose(self, name: str, where: str, key: str, columns: str, order: str) -> str:
        """A recursive loose scan: the first row, then the first past it by ``key``; per model on a gpu lane."""
        model = "j.model_key, " if self.by_model else ""
        names = (model + columns).replace("j.", "")
        probe = f"select {model}{columns} from {self.table} j where {where}"
        past = key.replace("j.", "l.")
        if self.by_model:
            start = (
                "select x.* from unnest({models}::text[]) m(model) cross join lateral "
                f'({probe} and j.model_key = m.model collate "C" order by {order} limit 1) x'
            )
            probe += " and j.model_key = l.model_key"
        else:
            start = f"({probe} order by {order} limit 1)"
        return (
            f"{name}({names}) as ({start} union all select x.* from {name} l cross join lateral "
            f"({probe} and ({key}) > ({past}) order by {order} limit 1) x)"
        )


def _allowed(alias: str) -> str:
    return (
        f"(cardinality({alias}.only_boxes) = 0 or {{box}} = any({alias}.only_boxes)) "
        f"and not {{box}} = any({alias}.avoid_boxes)"
    )


class Locked(NamedTuple):
    """The CTEs up to ``locked`` (ids of n rows that are ours, in the order of the claim); a condition that says, of a
    short answer, that there was more to look at than was looked at, and of a full one, that it took reading FAR entries
    of the index; the select of the ``last`` row, to be put behind, or nothing."""

    ctes: str
    short: str
    last: str = ""


@lru_cache(maxsize=256)
def locked_ctes(
    family: Family,
    by_model: bool,
    newest: bool,
    bands: bool,
    look: int,
    plain: bool = False,
    floored: bool = False,
    after: str | None = None,
) -> Locked:
    """What a claim takes.

    ``plain``: one index scan that takes nothing when it finds that anything constrained or scheduled is queued, and then says
    that there is more. Half the time of a claim of one job, which goes into setting up the nodes of the long form.
    ``floored``: the short form that may start behind a row, see floor.py; the other one only says that it would pay.
    ``bands``: look at the first rows of each (class, band), not of each class: what newest-first needs, and the exact
    answer for aged jobs behind a more urgent band of their own model.
    ``look``: rows per class, a power of two chosen by our code. ``after``: a CTE whose rows must be written before.
    """
    s = _Shape(family, by_model, newest)
    if plain:
        free = _free(s, look, BEHIND if floored else "")
        guard = [_nothing_else(s, floored)]
        return _locked(s, family, guard, [free], [_free_past(s, look)], after, plain=True, floored=floored)
    place = "j.place, j.only_boxes, j.avoid_boxes"
    ctes = [s.loose("late_places", s.later, "j.place", place, "j.place")]
    ctes.append(f"late_open as (select * from late_places p where {_allowed('p')})")
    due = (
        f"select x.* from late_open e cross join lateral (select {s.keys} from {s.table} j where {s.later} and "
        f"{s.same_class('e')} and j.run_after <= {{now}} order by j.run_after limit {DUE_LOOK}) x"
    )
    more = [
        f"exists (select 1 from late_open e cross join lateral (select 1 from {s.table} j where {s.later} and "
        f"{s.same_class('e')} and j.run_after <= {{now}} order by j.run_after offset {DUE_LOOK} limit 1) x)"
    ]
    if bands:
        columns = "j.place, j.band, j.only_boxes, j.avoid_boxes, j.created_at, j.id"
        ctes.append(s.loose("bands", s.here, "j.place, j.band", columns, "j.place, j.band, j.created_at, j.id"))
        ctes.append(f"allowed as (select * from bands c where {_allowed('c')})")
        # Every band has its oldest row here: what decides whether it has aged rows at all.
        rank = _Shape(family, by_model, newest=False).order
        ctes.append(f"opened as (select * from allowed c order by {rank} limit {{n}} + {look})")
        of_band = f"from {s.table} j where {s.here} and {s.same_class('o')} and j.band = o.band"
        age = ", ".join(f"j.{part}" for part in s.age.split(", "))
        parts = [of_band]
        if newest and by_model:  # aged rows of a cold model hide behind younger ones: look at both ends
            parts = [f"{of_band} and j.created_at {side} {{before[wait_s]}}" for side in ("<=", ">")]
        branches = [
            f"select x.* from opened o cross join lateral (select {s.keys} {part} order by {age} limit {look}) x"
            for part in parts
        ]
        more += [
            f"exists (select 1 from opened o cross join lateral (select 1 {part} order by {age} offset {look} limit 1) x)"
            for part in parts
        ]
        more.append(f"exists (select 1 from allowed offset {{n}} + {look})")
    elif by_model:
        ctes.append(s.loose("places", s.here, "j.place", place, "j.place"))
        ctes.append(f"open_places as (select * from places p where {_allowed('p')})")
        of_class = f"from {s.table} j where {s.here} and {s.same_class('e')} order by j.band, j.created_at, j.id"
        branches = [f"select x.* from open_places e cross join lateral (select {s.keys} {of_class} limit {look}) x"]
        more.append(
            f"exists (select 1 from open_places e cross join lateral (select 1 {of_class} offset {look} limit 1) x)"
        )
    else:
        ctes.append(s.loose("places", f"{s.here} and j.place > ''", "j.place", place, "j.place"))
        ctes.append(f"open_places as (select * from places p where {_allowed('p')})")
        of_class = f"from {s.table} j where {s.here} and {s.same_class('e')} order by j.band, j.created_at, j.id"
        branches = [
            _free(s, look),
            f"select x.* from open_places e cross join lateral (select {s.keys} {of_class} limit {look}) x",
        ]
        more.append(_free_past(s, look))
        more.append(
            f"exists (select 1 from open_places e cross join lateral (select 1 {of_class} offset {look} limit 1) x)"
        )
    return _locked(s, family, ctes, [*branches, due], more, after)


# A row comparison of the index's own columns says where a scan of it starts. What it is for: floor.py.
BEHIND = " and (j.band, j.created_at, j.id) > ({floor_band}, {floor_at}, {floor_id})"


def _free(s: _Shape, look: int, behind: str = "") -> str:
    """The unconstrained rows in their order, read lazily."""
    return (
        f"(select {s.keys} from {s.table} j where {s.here} and j.place = ''{behind} "
        f"order by j.band, j.created_at, j.id limit {look * CAP_FACTOR})"
    )


def _free_past(s: _Shape, look: int) -> str:
    return (
        f"exists (select 1 from {s.table} j where {s.here} and j.place = '' "
        f"order by j.band, j.created_at, j.id offset {look * CAP_FACTOR} limit 1)"
    )


def _nothing_else(s: _Shape, floored: bool) -> str:
    """No constrained row and no scheduled one is queued: two index probes, once per statement. Behind a floor nobody
    asks: these too would read what is dead. ``seen``: how far the count of index entries was before."""
    ask = (
        f"(select 1 from {s.table} j where {s.here} and j.place > '' limit 1) is null "
        f"and (select 1 from {s.table} j where {s.later} limit 1) is null"
    )
    if floored:
        ask = f"{{far}} < 0 or ({ask})"
    return f"plainly as materialized (select {_entries_read(s)} as seen, {ask} as ok)"


def _entries_read(s: _Shape) -> str:
    """The server's own count, which goes into its statistics between transactions. It counts what is read, so that a
    slow machine does not pass for a full index. Always 0 where track_counts is off."""
    return f"pg_stat_get_xact_tuples_returned('{s.table}_claim'::regclass)"


def _walked(s: _Shape) -> str:
    """How many entries of the index this claim has read. To be asked behind its rows."""
    return f"{_entries_read(s)} - (select seen from plainly)"


def _last(s: _Shape) -> str:
    """One row when the claim read more than {far} entries: how many, and the last of its rows in the order."""
    return (
        f" union all select 'last', l.id, w.walked, l.band, l.created_at::text, {nulls(4)} from "
        f"(select {_walked(s)} as walked) w left join (select * from locked "
        "order by band desc, created_at desc, id desc limit 1) l on true where w.walked > {far}"
    )


def nulls(used: int) -> str:
    """The rest of a row that has ``used`` of CLAIM_COLUMNS."""
    return ", ".join(["null"] * (CLAIM_COLUMNS.count(",") + 1 - used))


def _locked(
    s: _Shape,
    family: Family,
    ctes: list[str],
    branches: list[str],
    more: list[str],
    after: str | None,
    plain: bool = False,
    floored: bool = False,
) -> Locked:
    """Merge the branches' candidates and lock n of them one by one."""
    alive = (
        f" and exists (select 1 from workflow_runs r where r.id = j.run_id and r.status in {LIVE_RUN})"
        if family.has_run
        else ""
    )
    guards = [f"(select count(*) from {after}) >= 0"] if after else []
    if plain:
        guards.append("(select ok from plainly)")
        more = ["not (select ok from plainly)", *more]
    guard = f"where {' and '.join(guards)} " if guards else ""
    ctes.append(
        f"locked as materialized (select x.id{', c.band, c.created_at' if floored else ''} from (select * from ({' union all '.join(branches)}) c "
        f"order by {s.order}) c cross join lateral (select j.id from {s.table} j where j.ctid = c.tid "
        f"and j.status = 'queued' and (j.last_lost_box is null or j.last_lost_box <> {{box}} "
        f"or j.last_lost_at <= {{before[shun_s]}}){alive} for update of j skip locked) x {guard}limit {{n}})"
    )
    # CASE, because AND does not keep its order: a full answer must not pay for the look past the look-ahead (0.14 ms).
    far = f"{_walked(s)} > {FAR}" if plain and not floored else "false"
    asks = "{far} >= 0 and " if floored else ""  # behind a floor it is for the lane to say when to look before it
    short = f"case when {asks}(select count(*) from locked) < {{n}} then {' or '.join(more)} else {far} end"
    return Locked(", ".join(ctes), short, _last(s) if floored else "")


# What a claim writes into a row.
CLAIM_WRITES = {
    "status": "'running'",
    "claimed_by": "{owner}",
    "claimed_box": "{box}",
    "claimed_at": "{now}",
    "started_at": "case when {begin}::boolean then {now} end",
    "lease_expires_at": "{after[lease_s]}",
    "attempt": "j.attempt + 1",
    "fencing_token": "j.fencing_token + 1",
    "progress_pct": "null",
    "progress_text": "null",
    "unplaceable_reason": "null",
    "kill_requested": "false",
}


def claimed_ctes(family: Family, unsynced: bool) -> str:
    """The CTEs that stamp what is ``locked``; ``unsynced``: after the CTE of that name."""
    after = " and (select count(setting) from unsynced) = 1" if unsynced else ""
    writes = ", ".join(f"{column} = {value}" for column, value in CLAIM_WRITES.items())
    return (
        "chosen as (select array(select id from locked) as ids), "
        f"claimed as (update {family.table} j set {KEEP_GENERATED}, {writes} "
        f"where j.id = any(array(select id from locked)){after} returning {claimed_columns(family)}, "
        "array_position((select ids from chosen), j.id) as ord)"
    )


def claimed_columns(family: Family) -> str:
    """What a claim returns of row ``j``: CLAIM_COLUMNS without ``ord``."""
    return CLAIMED.format(
        name=family.name_column,
        run="j.run_id, j.node_id," if family.has_run else "null::bigint as run_id, null::text as node_id,",
        payload=f"j.{family.input_column}",
        model="j.required_model" if family.has_run else "null::text",
    )


# A claim on its own does not wait for the disk: it is no effect, and half of the way from an insert to user code would
# be its fsync. A server that crashes before the record is down has forgotten the claim: the row is queued as before,
# and the lane learns that it lost it. What the attempt does is safe, because its end is flushed, and the claim's record
# with it. Only the number of the fence may then be given a second time, so that writes about an attempt name its owner
# too. Never in the fused statement: that one holds results.
UNSYNCED = "unsynced as materialized (select set_config('synchronous_commit', 'off', true) as setting)"

CLAIM_COLUMNS = (
    "id, fencing_token, attempt, name, run_id, node_id, payload, required_model, priority, is_priority, queue, project, "
    "budget_s, failures, max_attempts, watchdog_retries, losses, ord"
)


@lru_cache(maxsize=256)
def claim_statement(
    family: Family,
    by_model: bool,
    newest: bool,
    bands: bool,
    look: int,
    plain: bool = False,
    floored: bool = False,
) -> str:
    """The claim on its own: rows of kind ``claim``, one of kind ``more`` when another look may find more, and, with
    ``floored``, one of kind ``last`` (see _last)."""
    locked = locked_ctes(family, by_model, newest, bands, look, plain, floored)
    return f"with recursive {UNSYNCED}, {locked.ctes}, {claimed_ctes(family, unsynced=True)} {claim_rows(locked)}"


def claim_rows(locked: Locked) -> str:
    """The select that returns the claim's rows (and ``more``, ``last``), to stand alone or before other kinds."""
    return f"select 'claim' as kind, {CLAIM_COLUMNS} from claimed{more_rows(locked)}"


def more_rows(locked: Locked) -> str:
    """What a claim says beside its rows; behind them, because it looks at what they read."""
    return f" union all select 'more', 0, {nulls(1)} where {locked.short}{locked.last}"
