"""The fused statement for PostgreSQL: finish k jobs, their history, outbox and effects, and claim n more; one commit.

A completion costs one round trip and one fsync, shared by everything that happened since the last one; claim and
finish as two commits halve the rate of a slot.
"""

from __future__ import annotations

from functools import lru_cache

from engine.queue.claim_sql import (
    CLAIM_COLUMNS,
    CLAIM_WRITES,
    KEEP_GENERATED,
    claim_rows,
    claimed_columns,
    claimed_ctes,
    locked_ctes,
    more_rows,
    nulls,
)
from engine.queue.events import COLUMNS
from engine.queue.family import Family

# Under the row's lock: a cancel that was asked for wins over what the attempt reports; an error with attempts left
# goes back into the queue.
_BECOMES = (
    "case when j.cancel_requested or d.outcome = 'cancelled' then 'cancelled' "
    "when d.outcome = 'failed' and not d.final and j.failures + 1 < j.max_attempts then 'queued' else d.outcome end"
)
_SPENT = "case when d.outcome = 'failed' and not j.cancel_requested then 1 else 0 end"
# 1 s, 2 s, 4 s ... 10 minutes, a quarter up or down.
_BACKOFF = "make_interval(secs => least(600, power(2, least(j.failures, 16))) * (0.75 + 0.5 * random()))"


ClaimShape = tuple[bool, bool, bool, int, bool, bool]  # by_model, newest, bands, look, plain, floored


@lru_cache(maxsize=256)
def finish_statement(family: Family, claim: ClaimShape | None) -> str:
    """Rows of kind ``done`` and ``stale`` (their id), and, with ``claim``, of ``claim`` and ``more``."""
    table, becomes = family.table, _BECOMES
    ctes = [
        # Locks are taken in the order of the ids, as everywhere.
        "done as materialized (select * from unnest({ids}::bigint[], {tokens}::bigint[], {outcomes}::text[], "
        "{outputs}::text[], {errors}::text[], {elapsed}::float8[], {exits}::int[], {details}::text[], "
        "{finals}::bool[]) as d(id, token, outcome, output, error, elapsed_s, exit_code, detail, final) order by id)",
        f"fin as (update {table} j set {KEEP_GENERATED}, status = {becomes}, "
        f"{family.output_column} = case when {becomes} = 'completed' then d.output::jsonb end, "
        f"error = case {becomes} when 'completed' then null when 'cancelled' then coalesce(d.error, 'cancelled') "
        "else d.error end, "
        f"failures = j.failures + {_SPENT}, "
        f"finished_at = case when {becomes} <> 'queued' then {{now}} end, "
        f"run_after = case when {becomes} = 'queued' then {{now}} + {_BACKOFF} else j.run_after end, "
        f"claimed_by = case when {becomes} <> 'queued' then j.claimed_by end, "
        f"claimed_box = case when {becomes} <> 'queued' then j.claimed_box end, "
        f"claimed_at = case when {becomes} <> 'queued' then j.claimed_at end, "
        f"started_at = case when {becomes} <> 'queued' then coalesce(j.started_at, {{now}}) end, "
        f"progress_pct = case when {becomes} <> 'queued' then j.progress_pct end, "
        f"progress_text = case when {becomes} <> 'queued' then j.progress_text end, "
        "lease_expires_at = null, kill_requested = false "
        # Hidden from the planner: it would walk the index of running rows and compare each with every outcome.
        "from done d where j.id = d.id and j.fencing_token = d.token and j.claimed_by = {owner} "
        "and coalesce(j.status, '') = 'running' "
        f"returning j.id, j.status, j.attempt, j.fencing_token, j.queue, j.project, {_run(family, 'j')}, "
        f"j.{family.output_column} as output, d.elapsed_s, d.exit_code, d.detail, j.started_at)",
        # The same outcome of the same attempt once more: the first answer was lost on the way, not the claim.
        f"late as (select d.*, j.status, j.attempt, j.fencing_token as fence, j.claimed_by, j.queue, j.project, "
        f"{_run(family, 'j')}, coalesce(j.fencing_token = d.token and j.status = d.outcome, false) as again "
        f"from done d left join {table} j on j.id = d.id where d.id not in (select id from fin))",
        f"history as (insert into job_events ({COLUMNS}) "
        f"select '{family.name}', f.id, f.run_id, f.node_id, f.attempt, f.fencing_token, "
        "case f.status when 'queued' then 'requeued' else f.status end, case f.status when 'queued' then 'retry' end, "
        "{box}, f.queue, f.exit_code, coalesce(f.elapsed_s, extract(epoch from {clock} - f.started_at)), "
        "f.detail::jsonb, f.project from fin f union all "
        f"select '{family.name}', l.id, l.run_id, l.node_id, l.attempt, l.token, 'stale_write', null, {{box}}, "
        "coalesce(l.queue, {lane}), l.exit_code, l.elapsed_s, jsonb_build_object('wrote', l.outcome, 'status', l.status, "
        "'fencing_token', l.fence, 'owner', l.claimed_by), coalesce(l.project, '') from late l where not l.again)",
    ]
    ctes.append(_effects(family, "fin f where f.status = 'completed'", "fin f where f.status <> 'queued'"))
    rows = (
        f"select 'done' as kind, id, {nulls(1)} from fin union all "
        f"select case when again then 'done' else 'stale' end, id, {nulls(1)} from late"
    )
    if claim is None:
        return f"with {', '.join(ctes)} {rows.replace(', ' + nulls(1), '')}"
    locked = locked_ctes(family, *claim, after="fin")
    ctes += [locked.ctes, claimed_ctes(family, unsynced=False)]
    return f"with recursive {', '.join(ctes)} {claim_rows(locked)} union all {rows}"


@lru_cache(maxsize=256)
def complete_statement(family: Family, claim: ClaimShape | None) -> str:
    """The short form for what nearly every commit is: attempts that completed. Rows of kind ``done``, and the claim's.

    What it does not return is for :func:`finish_statement` to explain. One UPDATE ends the attempts and claims the next:
    setting up an UPDATE of a table with checks, generated columns and five indexes takes the server longer than updating
    a row, so that a second one costs a fifth of the statement (0.66 ms against 0.52 for one job). The ends are written
    before a row is locked for the claim, because ``locked`` is not looked at before ``done`` is used up; why they must be
    is said in claim_sql.
    """
    ctes = [
        "done as materialized (select * from unnest({ids}::bigint[], {tokens}::bigint[], {outputs}::text[], "
        "{elapsed}::float8[]) as d(id, token, output, elapsed_s) order by id)"
    ]
    source, more = "select *, false as claim, null::bigint as ord from done", ""
    if claim is not None:
        locked = locked_ctes(family, *claim)
        ctes.append(locked.ctes)
        source += " union all select id, null, null, null, true, row_number() over () from locked"
        more = more_rows(locked)
    ctes += [
        f"turn as (update {family.table} j set {KEEP_GENERATED}, {_turn_writes(family, claim is not None)} "
        f"from ({source}) d where j.id = d.id and (d.claim or (not d.claim "
        "and j.fencing_token = d.token and j.claimed_by = {owner} and coalesce(j.status, '') = 'running')) "
        f"returning {claimed_columns(family)}, d.ord, d.claim, j.status, j.{family.output_column} as output, d.elapsed_s, "
        "j.started_at)",
        f"history as (insert into job_events ({COLUMNS}) "
        f"select '{family.name}', f.id, f.run_id, f.node_id, f.attempt, f.fencing_token, f.status, null, {{box}}, "
        "f.queue, null, coalesce(f.elapsed_s, extract(epoch from {clock} - f.started_at)), '{{}}'::jsonb, f.project "
        "from turn f where not f.claim)",
        _effects(family, "turn f where f.status = 'completed' and not f.claim", "turn f where not f.claim"),
    ]
    kind = "case when claim then 'claim' else 'done' end as kind"
    return f"with recursive {', '.join(ctes)} select {kind}, {CLAIM_COLUMNS} from turn{more}"


def _turn_writes(family: Family, claims: bool) -> str:
    """The assignments of an UPDATE that completes rows, and, where ``d.claim`` says so, claims them instead."""
    ends = {
        "status": "case when j.cancel_requested then 'cancelled' else 'completed' end",
        family.output_column: "case when not j.cancel_requested then d.output::jsonb end",
        "error": "case when j.cancel_requested then 'cancelled' end",
        "finished_at": "{now}",
        "started_at": "coalesce(j.started_at, {now})",
        "lease_expires_at": "null",
        "kill_requested": "false",
    }
    if not claims:
        return ", ".join(f"{column} = {value}" for column, value in ends.items())
    return ", ".join(
        f"{column} = case when d.claim then {CLAIM_WRITES.get(column, 'j.' + column)} "
        f"else {ends.get(column, 'j.' + column)} end"
        for column in {**ends, **CLAIM_WRITES}
    )


def _effects(family: Family, completed: str, ended: str) -> str:
    """What an end sets going; ``completed``, ``ended``: where the rows ``f`` are."""
    if family.has_run:
        return (
            "effects as (insert into workflow_dispatch_events (run_id, node_id, kind) "
            "select f.run_id, f.node_id, case f.status when 'completed' then 'completed' else 'failed' end "
            f"from {ended} order by f.id)"
        )
    return (
        "effects as (insert into executions (job_id, fencing_token, worker, result) "
        f"select f.id, f.fencing_token, {{owner}}, f.output from {completed} on conflict (job_id) do nothing)"
    )


def _run(family: Family, alias: str) -> str:
    if family.has_run:
        return f"{alias}.run_id, {alias}.node_id"
    return "null::bigint as run_id, null::text as node_id"
