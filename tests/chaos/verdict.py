"""What must be true of the database when all is over. Pure: rows in, breaches out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.journal import Breach

Row = Mapping[str, Any]

TERMINAL = frozenset({"completed", "failed", "cancelled", "skipped"})
ENDINGS = frozenset({"completed", "failed", "cancelled", "requeued"})
GIVEN_AWAY = frozenset({"lane_lost", "lease_lapsed"})
CAUSES = frozenset(
    {"executor_died", "lane_lost", "lease_lapsed", "operator_stop", "drain", "trip", "retry", "handed_back"}
)
FROZEN_S = 30.0  # a lane that is stopped for less loses nothing


@dataclass
class Books:
    """Everything that the verdict reads. ``freezes``: (box/queue, from, to) in seconds since the epoch."""

    jobs: Sequence[Row] = ()  # both families, with family
    runs: Sequence[Row] = ()
    audit: Sequence[Row] = ()  # in the order of their ids
    events: Sequence[Row] = ()  # in the order of their ids
    executions: Sequence[Row] = ()
    effects: Sequence[Row] = ()
    outbox: Sequence[Row] = ()
    freezes: Sequence[tuple[str, float, float]] = ()
    held_at: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)  # SQLite: marks, as watched
    asked_jobs: Mapping[int, str] = field(default_factory=dict)
    asked_runs: Mapping[int, int] = field(default_factory=dict)
    cancelled_jobs: frozenset[int] = frozenset()
    cancelled_runs: frozenset[int] = frozenset()


@dataclass
class Verdict:
    breaches: list[Breach] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def breach(self, rule: str, text: str) -> None:
        self.breaches.append(Breach(rule, text))


def judge(books: Books) -> Verdict:
    """All rules over all rows."""
    verdict = Verdict()
    audit: dict[int, list[Row]] = defaultdict(list)
    events: dict[int, list[Row]] = defaultdict(list)
    for row in books.audit:
        audit[row["job_id"]].append(row)
    for row in books.events:
        events[row["job_id"]].append(row)
        verdict.counts[f"event {row['event_type']}" + (f" {row['cause']}" if row["cause"] else "")] += 1
    for job in books.jobs:
        verdict.counts[f"{job['family']} {job['status']}"] += 1
        _lives(verdict, job, audit[job["id"]])
        _history(verdict, job, audit[job["id"]], events[job["id"]])
        _counters(verdict, job, events[job["id"]])
        _given_away(verdict, books, job, audit[job["id"]], events[job["id"]])
    _effects(verdict, books, audit)
    _graphs(verdict, books, audit)
    _asked(verdict, books)
    return verdict


def _name(job: Row) -> str:
    return f"{job['family']} job {job['id']}"


def _lives(verdict: Verdict, job: Row, audit: Sequence[Row]) -> None:
    """Terminal at last and for good; one owner at a time; the fence grows by one with each claim and not otherwise."""
    if job["status"] not in TERMINAL:
        verdict.breach("not_terminal", f"{_name(job)} is {job['status']}")
    status, fence = None, None
    for step in audit:
        if step["old"] in TERMINAL:
            verdict.breach("reopened", f"{_name(job)} went from {step['old']} to {step['new']}")
        if status is not None and (step["old"], step["old_fence"]) != (status, fence):
            verdict.breach(
                "audit", f"{_name(job)}: a step begins at {step['old']}/{step['old_fence']}, not {status}/{fence}"
            )
        claimed = step["old"] == "queued" and step["new"] == "running"
        if step["old"] == "running" and step["new"] == "running":
            verdict.breach("two_owners", f"{_name(job)} was taken from {step['old_owner']} by {step['owner']}")
        if step["fence"] != step["old_fence"] + (1 if claimed else 0):
            verdict.breach(
                "fence",
                f"{_name(job)}: fence {step['old_fence']} -> {step['fence']} from {step['old']} to {step['new']}",
            )
        if claimed and step["attempt"] != step["old_attempt"] + 1:
            verdict.breach("attempt", f"{_name(job)}: attempt {step['old_attempt']} -> {step['attempt']} at a claim")
        status, fence = step["new"], step["fence"]
    if audit and status != job["status"]:
        verdict.breach("audit", f"{_name(job)} is {job['status']}, its last step led to {status}")


def _ending(status: str) -> str:
    return "requeued" if status == "queued" else status


def _history(verdict: Verdict, job: Row, audit: Sequence[Row], events: Sequence[Row]) -> None:
    """One event for each end, in the order of the ends, with its fence and attempt; the last one says the status."""
    ends = [step for step in audit if step["new"] != "running" and step["new"] in TERMINAL | {"queued"}]
    told = [event for event in events if event["event_type"] in ENDINGS]
    was = [(step["old_fence"], _ending(step["new"])) for step in ends]
    said = [(event["fencing_token"], event["event_type"]) for event in told]
    if was != said:
        missing, extra = Counter(was) - Counter(said), Counter(said) - Counter(was)
        if missing:
            verdict.breach("event_missing", f"{_name(job)}: no event for {sorted(missing.elements())}")
        if extra:
            verdict.breach("event_contradicts", f"{_name(job)}: nothing happened for {sorted(extra.elements())}")
        if not missing and not extra:
            verdict.breach("event_order", f"{_name(job)}: {said} for {was}")
        return
    for step, event in zip(ends, told, strict=True):
        if event["attempt"] != step["old_attempt"]:
            verdict.breach(
                "event_contradicts", f"{_name(job)}: event of attempt {event['attempt']} for {step['old_attempt']}"
            )
        if event["event_type"] == "requeued" and event["cause"] not in CAUSES:
            verdict.breach("event_contradicts", f"{_name(job)}: requeued because of {event['cause']!r}")
        back = step["attempt"] - step["old_attempt"]
        if back not in (0, -1) or (
            back == -1 and event["cause"] != "handed_back" and event["event_type"] != "cancelled"
        ):
            verdict.breach(
                "attempt", f"{_name(job)}: attempt {step['old_attempt']} -> {step['attempt']} for {event['cause']}"
            )
    if told and job["status"] in TERMINAL and told[-1]["event_type"] != job["status"]:
        verdict.breach(
            "event_contradicts", f"{_name(job)} is {job['status']}, its last event says {told[-1]['event_type']}"
        )


def _counters(verdict: Verdict, job: Row, events: Sequence[Row]) -> None:
    """What was spent is what the events say, and never above its cap."""
    back = Counter(event["cause"] for event in events if event["event_type"] == "requeued")
    errors = sum(1 for event in events if event["event_type"] == "failed" and event["cause"] is None)
    for name, found, told in (
        ("losses", job["losses"], back["lane_lost"] + back["lease_lapsed"]),
        ("watchdog_retries", job["watchdog_retries"], back["executor_died"] + back["trip"]),
        ("failures", job["failures"], back["retry"] + errors),
    ):
        if found != told:
            verdict.breach("counters", f"{_name(job)}: {name} is {found}, the events say {told}")


def _given_away(verdict: Verdict, books: Books, job: Row, audit: Sequence[Row], events: Sequence[Row]) -> None:
    """Nothing is taken from a lane that holds its session, unless it was stopped for too long."""
    causes = {(event["fencing_token"], event["event_type"]): event for event in events}
    for step in audit:
        if step["old"] != "running" or step["new"] == "completed":
            continue
        event = causes.get((step["old_fence"], _ending(step["new"])))
        if event is None or event["cause"] not in GIVEN_AWAY:
            continue
        verdict.counts["given away"] += 1
        owner = str(step["old_owner"])
        held = bool(step["held"]) or _watched(books.held_at.get(owner.rsplit("/", 1)[-1], ()), step["at"].timestamp())
        if not held:
            continue
        place = owner.rsplit("/", 1)[0]
        at = step["at"].timestamp()
        if any(place == name and begun + FROZEN_S <= at <= ended + 1.0 for name, begun, ended in books.freezes):
            verdict.counts["given away from a frozen lane"] += 1
        else:
            why = (event["detail"] or {}).get("reason")
            verdict.breach(
                "given_away", f"{_name(job)} at {step['at']}: {event['cause']} ({why}), but {owner} held its session"
            )


def _watched(spans: Iterable[tuple[float, float]], at: float) -> bool:
    return any(begun <= at <= ended for begun, ended in spans)


def _effects(verdict: Verdict, books: Books, audit: Mapping[int, Sequence[Row]]) -> None:
    """One effect for each completed job, by the attempt that completed it; none for any other."""
    jobs = {job["id"]: job for job in books.jobs}
    completed = {
        id: next((step for step in reversed(audit.get(id, ())) if step["new"] == "completed"), None) for id in jobs
    }
    executions: dict[int, list[Row]] = defaultdict(list)
    for row in books.executions:
        executions[row["job_id"]].append(row)
    own: dict[int, list[Row]] = defaultdict(list)
    for row in books.effects:
        own[row["job_id"]].append(row)
    verdict.counts["effects"] = len(books.effects)
    verdict.counts["executions"] = len(books.executions)
    for id, job in jobs.items():
        done = completed[id]
        rows = executions[id] if job["family"] == "ingest" else []
        if len(rows) != (1 if job["family"] == "ingest" and job["status"] == "completed" else 0):
            verdict.breach("executions", f"{_name(job)} is {job['status']} and has {len(rows)} executions")
        for row in rows:
            if done and (row["fencing_token"], row["worker"]) != (done["old_fence"], done["old_owner"]):
                verdict.breach(
                    "executions",
                    f"{_name(job)}: effect of {row['worker']} with fence {row['fencing_token']}, "
                    f"but {done['old_owner']} held it with {done['old_fence']}",
                )
        transactional = job["name"] in ("effect", "branch_effect")
        wanted = 1 if transactional and job["status"] == "completed" else 0
        if len(own[id]) > 1:
            verdict.breach(
                "effect_twice", f"{_name(job)}: {len(own[id])} effects, fences {[r['fence'] for r in own[id]]}"
            )
        elif len(own[id]) != wanted:
            verdict.breach("effect", f"{_name(job)} is {job['status']} and has {len(own[id])} effects")
        elif wanted and done and own[id][0]["fence"] != done["old_fence"]:
            verdict.breach(
                "effect", f"{_name(job)}: effect of fence {own[id][0]['fence']}, completed with {done['old_fence']}"
            )
    for id in executions.keys() | own.keys():
        if id not in jobs:
            verdict.breach("executions", f"an effect of job {id}, which does not exist")


def _graphs(verdict: Verdict, books: Books, audit: Mapping[int, Sequence[Row]]) -> None:
    """Every run is over, whole or stopped; nothing ran before what it depends on; every node told the outbox once."""
    nodes: dict[int, list[Row]] = defaultdict(list)
    for job in books.jobs:
        if job["family"] == "node":
            nodes[job["run_id"]].append(job)
    told = Counter((row["run_id"], row["node_id"], row["kind"]) for row in books.outbox)
    for row in books.outbox:
        if row["processed_at"] is None:
            verdict.breach("outbox", f"event {row['id']} of run {row['run_id']} was never processed: {row['error']}")
    for run in books.runs:
        verdict.counts[f"run {run['status']}"] += 1
        mine = {node["node_id"]: node for node in nodes[run["id"]]}
        if run["status"] not in TERMINAL or run["finished_at"] is None:
            verdict.breach("run_open", f"run {run['id']} is {run['status']}, finished_at {run['finished_at']}")
        if run["status"] == "completed":
            if sorted(mine) != ["a", "b", "c", "d"] or any(node["status"] != "completed" for node in mine.values()):
                states = {id: node["status"] for id, node in mine.items()}
                verdict.breach("graph", f"run {run['id']} is completed with {states}")
            elif run["id"] in books.asked_runs and mine["d"]["output"] != {"value": books.asked_runs[run["id"]]}:
                verdict.breach(
                    "graph", f"run {run['id']} came to {mine['d']['output']}, not {books.asked_runs[run['id']]}"
                )
        if run["status"] == "failed" and not any(n["status"] in ("failed", "cancelled") for n in mine.values()):
            verdict.breach("graph", f"run {run['id']} failed and none of its nodes did: {run['error']}")
        ended = {id: _last(audit.get(node["id"], ()), "completed") for id, node in mine.items()}
        for id, needs in (("b", "a"), ("c", "a"), ("d", "b"), ("d", "c")):
            begun = _first(audit.get(mine[id]["id"], ()), "running") if id in mine else None
            if begun is not None and (ended.get(needs) is None or ended[needs] > begun):
                verdict.breach("graph", f"run {run['id']}: {id} began before {needs} was completed")
        for id, node in mine.items():
            if node["status"] == "completed" and told[run["id"], id, "completed"] != 1:
                verdict.breach(
                    "outbox", f"{_name(node)} completed with {told[run['id'], id, 'completed']} outbox events"
                )


def _first(audit: Sequence[Row], status: str) -> int | None:
    return next((step["id"] for step in audit if step["new"] == status), None)


def _last(audit: Sequence[Row], status: str) -> int | None:
    return next((step["id"] for step in reversed(audit) if step["new"] == status), None)


def _asked(verdict: Verdict, books: Books) -> None:
    """What was acknowledged is there; what was cancelled is cancelled; a key has one job."""
    ids = {job["id"]: job for job in books.jobs if job["family"] == "ingest"}
    runs = {run["id"]: run for run in books.runs}
    for id in books.asked_jobs:
        if id not in ids:
            verdict.breach("lost", f"job {id} was acknowledged and does not exist")
    for id in books.asked_runs:
        if id not in runs:
            verdict.breach("lost", f"run {id} was acknowledged and does not exist")
    for id in books.cancelled_jobs:
        if id in ids and ids[id]["status"] != "cancelled":
            verdict.breach("cancel", f"ingest job {id} was cancelled and is {ids[id]['status']}")
    for id in books.cancelled_runs:
        if id in runs and runs[id]["status"] != "cancelled":
            verdict.breach("cancel", f"run {id} was cancelled and is {runs[id]['status']}")
    keys = Counter(job["idempotency_key"] for job in ids.values() if job["idempotency_key"])
    for key, count in keys.items():
        if count != 1:
            verdict.breach("key", f"{key} made {count} jobs")
