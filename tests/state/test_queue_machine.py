"""A state machine over the queue: any order of claims, ends, losses, orders and late writes, beside a plain model.

After every step every row, every event and every effect must be as the model has it: one owner for a running row, a
fence that grows with each claim, nothing that reopens, one event for the end of each attempt, one effect at most.

`STATE_EXAMPLES=500 make test ARGS="-n0 tests/state"` looks further, with other examples each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine import config, registry
from engine.errors import Conflict, StaleClaim
from engine.queue import controls, lease, operate
from engine.queue.claim import ClaimedJob, ClaimRequest, claim
from engine.queue.ends import end_run
from engine.queue.enqueue import enqueue
from engine.queue.family import FAMILIES, INGEST, NODE, family_of_queue
from engine.queue.finish import Outcome, complete_job, finish
from engine.queue.requeue import hand_back, requeue, requeue_lost
from engine.queue.workers import Worker, beat
from engine.store import Db, Store
from engine.store.locks import Presence, new_incarnation, present
from tests.state.model import TERMINAL, Job, Told, row_of

EXAMPLES = int(os.environ.get("STATE_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 20,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
)
ENDINGS = ("completed", "failed", "cancelled", "requeued")
PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
PICK = st.integers(0, 10_000)  # which of those that there are


@dataclass
class Lane:
    """A lane's own view: the worker, the session that carries its mark, and what it believes to hold."""

    worker: Worker
    session: Db
    mark: Presence
    held: dict[int, ClaimedJob] = field(default_factory=dict)
    dead: bool = False

    @property
    def tokens(self) -> dict[int, int]:
        return {id: job.fencing_token for id, job in self.held.items()}


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, store: Store, db: Db) -> None:
        super().__init__()
        self.store, self.db = store, db
        self.project = new_incarnation()  # rows of other examples are other projects'
        self.jobs: dict[int, Job] = {}
        self.lanes: list[Lane] = []
        self.attempts: list[tuple[Lane, ClaimedJob]] = []  # every claim that there ever was
        self.keys: dict[str, tuple[int, int]] = {}
        self.stale = 0  # late writes that were told
        self.skew_s = 0.0
        self.observed: list[tuple[str, list[dict[str, Any]]]] = []  # what a sweep read some steps ago
        self.orders: list[tuple[str, str, str]] = []

    # --- set-up ---

    @initialize()
    def two_lanes(self) -> None:
        self.new_lane("default")
        self.new_lane("cpu")
        for priority, attempts in ((100, 1), (100, 2), (50, 3)):
            self.enqueue(priority=priority, attempts=attempts, key=None)
        self.enqueue_run(priority=100, attempts=2, count=2)

    def new_lane(self, queue: str) -> None:
        worker = Worker(f"b{len(self.lanes)}", queue, self.project, new_incarnation())
        session = self.store.connect("lane", direct=True)
        mark = Presence(self.store, worker.incarnation)
        mark.hold(session)
        self.lanes.append(Lane(worker, session, mark))

    def teardown(self) -> None:
        for lane in self.lanes:
            lane.mark.release()
            lane.session.close()

    @contextmanager
    def clock(self) -> Iterator[None]:
        """This process's clock on the wall is wrong while a worker acts."""
        real = time.time
        time.time = lambda: real() + self.skew_s
        try:
            yield
        finally:
            time.time = real

    def any_held(self) -> bool:
        return any(lane.held for lane in self.lanes)

    def any_claimable(self) -> bool:
        return any(job.claimable for job in self.jobs.values())

    def pick_job(self, n: int, *statuses: str) -> Job | None:
        found = [job for job in self.jobs.values() if not statuses or job.status in statuses]
        return found[n % len(found)] if found else None

    def pick_held(self, n: int) -> tuple[Lane, ClaimedJob] | None:
        """Mostly an attempt that its lane believes in, now and then any that there ever was: it writes late."""
        found = [(lane, job) for lane in self.lanes for job in lane.held.values()]
        if n % 4 == 3 or not found:
            found = self.attempts
        return found[n % len(found)] if found else None

    def lost_to(self, lane: Lane) -> set[int]:
        """What the lane believes to hold and somebody else has, or nobody."""
        return {id for id, token in lane.tokens.items() if not self.jobs[id].kept(lane.worker.owner, token)}

    def let_go(self, lane: Lane, held: ClaimedJob) -> None:
        if lane.held.get(held.id) is held:
            del lane.held[held.id]

    # --- enqueue ---

    @rule(
        priority=st.sampled_from((5, 50, 100, 200)),
        attempts=st.integers(1, 3),
        key=st.sampled_from((None, None, "k1", "k2")),
    )
    def enqueue(self, priority: int, attempts: int, key: str | None) -> None:
        def ask(priority: int) -> Any:
            return enqueue(
                self.db, task_name="work", queue="default", priority=priority, max_attempts=attempts,
                idempotency_key=key, project=self.project,
            )  # fmt: skip

        if key in self.keys and self.keys[key][1:] != (priority * 10 + attempts,):
            with pytest.raises(Conflict):
                ask(priority)
            return
        job = ask(priority)
        if key in self.keys:
            assert (job.existing, int(job.id)) == (True, self.keys[key][0])
            return
        if key:
            self.keys[key] = (int(job.id), priority * 10 + attempts)
        assert not job.existing
        self.jobs[int(job.id)] = Job(int(job.id), INGEST, priority, attempts)

    @rule(priority=st.sampled_from((5, 100)), attempts=st.integers(1, 2), count=st.integers(1, 3))
    def enqueue_run(self, priority: int, attempts: int, count: int) -> None:
        run = self.db.value(
            "insert into workflow_runs (status, project) values ('running', {project}) returning id",
            project=self.project,
        )
        for n in range(count):
            id = self.db.value(
                "insert into workflow_node_jobs (run_id, node_id, node, queue, priority, max_attempts, project) "
                "values ({run}, {node}, 'work', 'cpu', {priority}, {attempts}, {project}) returning id",
                run=run, node=f"n{n}", priority=priority, attempts=attempts, project=self.project,
            )  # fmt: skip
            self.jobs[id] = Job(id, NODE, priority, attempts, run=run)

    # --- claims ---

    def request(self, lane: Lane, n: int, ahead: bool, short: bool) -> ClaimRequest:
        return ClaimRequest(worker=lane.worker, n=n, lease_s=-1.0 if short else 600.0, begin=not ahead)

    def was_claimed(self, lane: Lane, got: list[ClaimedJob], n: int, ahead: bool) -> None:
        family = family_of_queue(lane.worker.queue)
        due = sorted(
            (job for job in self.jobs.values() if job.family is family and job.claimable), key=lambda j: j.place
        )
        assert [job.id for job in got] == [job.id for job in due[:n]]
        for each in got:
            job = self.jobs[each.id]
            job.claimed(lane.worker.owner, begin=not ahead)
            assert (each.fencing_token, each.attempt) == (job.fence, job.attempt)
            assert not any(
                lane.held.get(each.id) and not lane.dead for lane in self.lanes if lane.tokens.get(each.id) == job.fence
            )
            lane.held[each.id] = each
            self.attempts.append((lane, each))

    @precondition(any_claimable)
    @rule(n=st.integers(1, 3), which=PICK, ahead=st.booleans(), short=st.booleans())
    def claim(self, n: int, which: int, ahead: bool, short: bool) -> None:
        lane = self.lanes[which % len(self.lanes)]
        with self.clock():
            got = claim(self.db, self.request(lane, n, ahead, short))
        self.was_claimed(lane, got, n, ahead)

    @precondition(any_claimable)
    @rule(n=st.integers(1, 4), short=st.booleans())
    def all_claim(self, n: int, short: bool) -> None:
        for which, lane in enumerate(self.lanes):
            if not lane.dead:
                self.claim(n=n, which=which, ahead=False, short=short)

    @precondition(any_claimable)
    @rule(
        which=PICK,
        fate=st.sampled_from(("executor_died", "trip", "lane_lost", "lease_lapsed", "failed", "completed")),
        times=st.integers(1, 6),
        late=st.booleans(),
    )
    def again_and_again(self, which: int, fate: str, times: int, late: bool) -> None:
        """One after the other is claimed and ends in the same way: how caps and budgets are reached."""
        for _ in range(times):
            lane = self.lanes[which % len(self.lanes)]
            before = len(self.attempts)
            self.claim(n=1, which=which, ahead=False, short=True)
            if len(self.attempts) == before:
                return
            at = len(self.attempts) - 1
            if late and at >= before > 0:
                self.write_late(self.attempts[before - 1], self.attempts[at])
            if fate in ("failed", "completed"):
                self.end(*self.attempts[at], status=fate, more=0, keep=False)
                self.time_passes()
            elif fate == "lease_lapsed":
                self.observe_lapsed(renewed=False)
                self.sweep(which=len(self.observed) - 1)
            elif fate == "lane_lost":
                self.crash_lane(lane)
                self.observe_lost()
                self.sweep(which=len(self.observed) - 1)
                which = len(self.lanes) - 1
            else:
                self.cut_short(*self.attempts[at], cause=fate)

    def write_late(self, old: tuple[Lane, ClaimedJob], new: tuple[Lane, ClaimedJob]) -> None:
        """Everything that the attempt before can still send, also by the very lane that has the job again."""
        lane, held = old
        if new[1].id != held.id:
            return
        token = {held.id: held.fencing_token}
        assert lease.renew(self.db, lane.worker, token, 600.0).lost == {held.id}
        assert lease.flags(self.db, lane.worker, token)[2] == {held.id}
        assert lease.begin(self.db, lane.worker, token) == {held.id}
        assert lease.progress(self.db, lane.worker, [(held.id, held.fencing_token, 1.0, None)]) == {held.id}
        assert hand_back(self.db, lane.worker, token).stale == {held.id}
        for status in ("completed", "failed", "cancelled"):
            self.end(lane, held, status, more=0, keep=True)
        self.cut_short(lane, held, "executor_died")

    @precondition(any_held)
    @rule(which=PICK)
    def begin(self, which: int) -> None:
        lane = self.lanes[which % len(self.lanes)]
        ours = {id for id, token in lane.tokens.items() if self.jobs[id].mine(lane.worker.owner, token)}
        assert lease.begin(self.db, lane.worker, lane.tokens) == self.lost_to(lane)
        for id in ours:
            self.jobs[id].begun = True

    # --- while they run ---

    @precondition(any_held)
    @rule(which=PICK)
    def renew(self, which: int) -> None:
        lane = self.lanes[which % len(self.lanes)]
        with self.clock():
            answer = lease.renew(self.db, lane.worker, lane.tokens, 600.0)
            beat(self.db, lane.worker, state="running", slots=1, busy=0)
        ours = {id for id, token in lane.tokens.items() if self.jobs[id].mine(lane.worker.owner, token)}
        assert (answer.renewed, answer.lost) == (ours, self.lost_to(lane))
        assert answer.cancel == {id for id in ours if self.jobs[id].cancel}
        assert answer.kill == {id for id in ours if self.jobs[id].kill}
        assert lease.owned(self.db, lane.worker) == {
            job.id: job.fence
            for job in self.jobs.values()
            if job.status == "running" and job.owner == lane.worker.owner
        }

    @precondition(any_held)
    @rule(which=PICK, percent=st.floats(0, 100))
    def progress(self, which: int, percent: float) -> None:
        if (found := self.pick_held(which)) is None:
            return
        lane, held = found
        kept = self.jobs[held.id].kept(lane.worker.owner, held.fencing_token)
        lost = lease.progress(self.db, lane.worker, [(held.id, held.fencing_token, percent, "on the way")])
        assert lost == (set() if kept else {held.id})

    # --- ends ---

    @precondition(lambda self: self.attempts)
    @rule(
        which=PICK,
        status=st.sampled_from(("completed", "failed", "failed", "cancelled")),
        more=st.integers(0, 2),
        keep=st.booleans(),
    )
    def finish(self, which: int, status: str, more: int, keep: bool) -> None:
        if (found := self.pick_held(which)) is not None:
            self.end(*found, status, more, keep)

    def end(self, lane: Lane, held: ClaimedJob, status: str, more: int, keep: bool) -> None:
        """One end, with the next claim in the same commit; ``keep``: the answer is lost, so that it is sent once more."""
        job = self.jobs[held.id]
        was_mine = job.mine(lane.worker.owner, held.fencing_token)
        again = job.fence == held.fencing_token and job.status == status
        request = self.request(lane, more, False, False) if more else None
        with self.clock():
            answer = finish(self.db, lane.worker, [self.outcome(held, status)], next=request)
        if was_mine:
            job.finished(status)
        elif not again:
            self.stale += 1
        assert (answer.done, answer.stale) == (({held.id}, set()) if was_mine or again else (set(), {held.id}))
        if not keep:
            self.let_go(lane, held)
        self.set_due(FUTURE)
        self.was_claimed(lane, answer.claimed, more, False)

    @precondition(any_held)
    @rule(which=PICK, statuses=st.lists(st.sampled_from(("completed", "failed")), min_size=1, max_size=4))
    def finish_many(self, which: int, statuses: list[str]) -> None:
        lane = self.lanes[which % len(self.lanes)]
        batch = list(zip(list(lane.held.values()), statuses, strict=False))
        mine = {held.id for held, _ in batch if self.jobs[held.id].mine(lane.worker.owner, held.fencing_token)}
        again = {
            held.id for held, status in batch
            if held.id not in mine and (self.jobs[held.id].fence, self.jobs[held.id].status) == (held.fencing_token, status)
        }  # fmt: skip
        answer = finish(self.db, lane.worker, [self.outcome(held, status) for held, status in batch])
        for held, status in batch:
            if held.id in mine:
                self.jobs[held.id].finished(status)
            elif held.id not in again:
                self.stale += 1
            self.let_go(lane, held)
        self.set_due(FUTURE)
        assert (answer.done, answer.stale) == (mine | again, {held.id for held, _ in batch} - mine - again)

    def outcome(self, held: ClaimedJob, status: str) -> Outcome:
        output = f'{{"fence": {held.fencing_token}}}' if status == "completed" else None
        return Outcome(held.id, held.fencing_token, status, output, error="broke" if status == "failed" else None)

    @precondition(lambda self: self.attempts)
    @rule(which=PICK)
    def complete_in_its_own_transaction(self, which: int) -> None:
        if (found := self.pick_held(which)) is None:
            return
        lane, held = found
        job = self.jobs[held.id]

        @dataclass(frozen=True)
        class Me:
            family: Any = held.family
            id: int = held.id
            fencing_token: int = held.fencing_token
            worker: str = lane.worker.owner

        allowed = job.mine(lane.worker.owner, held.fencing_token) and not job.cancel
        try:
            with self.db.transaction():
                self.db.run(
                    "insert into control_events (project, action) values ({project}, {action})",
                    project=self.project, action=f"effect {held.id}",
                )  # fmt: skip
                complete_job(self.db.raw, Me(), {"own": True})
        except StaleClaim:
            assert not allowed
        else:
            assert allowed
            job.finished("completed")
        effects = self.db.value(
            "select count(*) as n from control_events where project = {project} and action = {action}",
            project=self.project, action=f"effect {held.id}",
        )  # fmt: skip
        assert effects <= 1
        assert not allowed or effects == 1

    # --- returns ---

    @precondition(lambda self: self.attempts)
    @rule(which=PICK, cause=st.sampled_from(("executor_died", "executor_died", "trip", "operator_stop", "drain")))
    def give_back(self, which: int, cause: str) -> None:
        if (found := self.pick_held(which)) is not None:
            self.cut_short(*found, cause)

    def cut_short(self, lane: Lane, held: ClaimedJob, cause: str) -> None:
        job = self.jobs[held.id]
        mine = job.mine(lane.worker.owner, held.fencing_token)
        answer = requeue(self.db, lane.worker, {held.id: held.fencing_token}, cause, exit_code=137)
        assert answer.stale == (set() if mine else {held.id})
        if mine:
            job.came_back(cause)
            assert held.id in getattr(answer, job.status)
        self.let_go(lane, held)

    @precondition(any_held)
    @rule(which=PICK)
    def hand_back(self, which: int) -> None:
        lane = self.lanes[which % len(self.lanes)]
        ours = {
            id for id, token in lane.tokens.items()
            if self.jobs[id].status == "running" and self.jobs[id].fence == token and not self.jobs[id].begun
        }  # fmt: skip
        answer = hand_back(self.db, lane.worker, lane.tokens)
        assert answer.stale == lane.held.keys() - ours
        for id in ours:
            self.jobs[id].handed_back()
        lane.held.clear()

    # --- lanes and what observers see ---

    @precondition(lambda self: len(self.lanes) < 8)
    @rule(which=PICK)
    def crash(self, which: int) -> None:
        """The session ends with the process; what it held stays on its rows, and its late writes may still come."""
        alive = [lane for lane in self.lanes if not lane.dead]
        self.crash_lane(alive[which % len(alive)])

    def crash_lane(self, lane: Lane) -> None:
        if not lane.dead:
            lane.dead = True
            lane.mark.release() if self.store.kind == "sqlite" else lane.session.close()
            self.new_lane(lane.worker.queue)

    @precondition(lambda self: any(lane.dead for lane in self.lanes))
    @rule()
    def observe_lost(self) -> None:
        """An observer reads whose session is gone and what it holds; it acts at once or some steps later."""
        names = [lane.worker.incarnation for lane in self.lanes]
        gone = {lane.worker.owner for lane in self.lanes if lane.dead}
        if self.store.kind == "sqlite":  # the kernel frees a lock before anybody can ask; a server a little later
            assert present(self.store, self.db, names) == {la.worker.incarnation for la in self.lanes if not la.dead}
        else:
            assert present(self.store, self.db, names) >= {la.worker.incarnation for la in self.lanes if not la.dead}
        rows = [row for row in self.running_rows() if row["claimed_by"] in gone]
        self.observed.append(("lane_lost", rows))

    @rule(renewed=st.booleans())
    def observe_lapsed(self, renewed: bool) -> None:
        """``renewed``: their lanes come back between the look and the act."""
        rows = [row for row in self.running_rows() if row["lapsed"]]
        self.observed.append(("lease_lapsed", rows))
        if renewed:
            for which in range(len(self.lanes)):
                self.renew(which=which)

    def running_rows(self) -> list[dict[str, Any]]:
        return [
            {**row, "family": family}
            for family in FAMILIES
            for row in self.db.all(
                "select id, fencing_token, claimed_by, lease_expires_at, "
                f"case when lease_expires_at < {{clock}} then 1 else 0 end as lapsed from {family.table} "
                "where project = {project} and status = 'running' order by id",
                project=self.project,
            )
        ]

    @precondition(lambda self: self.observed)
    @rule(which=PICK)
    def sweep(self, which: int) -> None:
        """What was seen is given back, as far as it is still so: whatever happened since wins."""
        cause, rows = self.observed.pop(which % len(self.observed))
        now = {row["id"]: row for row in self.running_rows()}
        for family in FAMILIES:
            seen = [row for row in rows if row["family"] is family]
            answer = requeue_lost(self.db, family, seen, cause, detail={"reason": "swept"})
            for row in seen:
                job = self.jobs[row["id"]]
                still = job.mine(row["claimed_by"], row["fencing_token"])
                if cause == "lease_lapsed":
                    still = still and now[row["id"]]["lease_expires_at"] == row["lease_expires_at"]
                assert (row["id"] in answer.stale) == (not still)
                if still:
                    job.came_back(cause)

    @rule(seconds=st.sampled_from((-600.0, 0.0, 600.0)))
    def skew(self, seconds: float) -> None:
        """The workers' clocks are ten minutes off from here on."""
        self.skew_s = seconds

    @precondition(lambda self: any(job.later for job in self.jobs.values()))
    @rule()
    def time_passes(self) -> None:
        """Everything that waits for its next attempt is due."""
        self.set_due(PAST)
        for job in self.jobs.values():
            job.later = False

    def set_due(self, moment: datetime) -> None:
        """No backoff of a second or two: how fast this machine is must not matter."""
        for family in FAMILIES:
            ids = [job.id for job in self.jobs.values() if job.family is family and job.later]
            self.db.run(
                f"update {family.table} set run_after = {{moment}} where id {{any[ids]}}", moment=moment, ids=ids
            )

    # --- operators ---

    @rule(which=PICK)
    def cancel(self, which: int) -> None:
        if (job := self.pick_job(which)) is None:
            return
        can = job.status == "queued" or (job.status == "running" and not job.cancel)
        assert bool(operate.cancel_job(self.db, job.id, "me").changed) == can
        job.cancelled()

    @rule(which=PICK)
    def kill(self, which: int) -> None:
        if (job := self.pick_job(which)) is None:
            return
        assert bool(operate.kill_job(self.db, job.id).changed) == (job.status == "running" and not job.kill)
        job.kill = job.kill or job.status == "running"

    @rule(which=PICK)
    def run_next(self, which: int) -> None:
        if (job := self.pick_job(which, "queued", "running", "completed")) is None:
            return
        due = self.db.value(f"select run_after from {job.family.table} where id = {{id}}", id=job.id) is None
        changed = operate.run_next(self.db, job.id).changed
        assert bool(changed) == (job.status == "queued" and not (job.flag and due))
        if job.status == "queued":
            job.flag, job.later = True, False

    @precondition(lambda self: any(job.status in TERMINAL for job in self.jobs.values()))
    @rule(which=PICK)
    def retry(self, which: int) -> None:
        if (job := self.pick_job(which)) is None:
            return
        done = operate.retry_job(self.db, job.id)
        retried = any(self.jobs[again].status not in TERMINAL for again in job.retries)
        assert (done.id is not None) == (job.family is INGEST and job.status in ("failed", "cancelled") and not retried)
        if done.id is not None:
            self.jobs[int(done.id)] = Job(int(done.id), INGEST, job.priority, job.max_attempts)
            job.retries.append(int(done.id))

    @rule(which=PICK, status=st.sampled_from(("failed", "cancelled")))
    def end_run(self, which: int, status: str) -> None:
        runs = sorted({job.run for job in self.jobs.values() if job.run is not None})
        if not runs:
            return
        run = runs[which % len(runs)]
        nodes = [job for job in self.jobs.values() if job.run == run]
        assert end_run(self.db, run, status, "told to") == (not nodes[0].over)
        for job in nodes:
            if not job.over:
                job.run_ended()

    @rule(
        box=st.sampled_from(("b0", "b1", "*")),
        desired=st.sampled_from(("on", "off")),
        policy=st.sampled_from(("hard", "drain")),
    )
    def order(self, box: str, desired: str, policy: str) -> None:
        """Park and resume: the newest order that names the lane holds; rows are not touched by it."""
        if desired == "off":
            operate.park(self.db, box=box, queue="default", policy=policy, project=self.project)
        else:
            operate.resume(self.db, box=box, queue="default", project=self.project)
        self.orders.append((box, desired, policy if desired == "off" else "hard"))
        for lane_box in ("b0", "b1", "b2"):
            found = controls.order_for(self.db, lane_box, "default", self.project)
            latest = next((o for o in reversed(self.orders) if o[0] in (lane_box, "*")), ("", "on", "hard"))
            assert found.desired == latest[1]
            assert found.desired == "on" or found.policy == latest[2]

    # --- what must hold after every step ---

    @invariant()
    def rows_are_as_the_model_has_them(self) -> None:
        for family in FAMILIES:
            rows = self.db.all(f"select * from {family.table} where project = {{project}}", project=self.project)
            assert {row["id"]: _shown(row) for row in rows} == {
                job.id: row_of(job) for job in self.jobs.values() if job.family is family
            }

    @invariant()
    def every_end_is_told_once(self) -> None:
        told: dict[int, list[Told]] = {id: [] for id in self.jobs}
        stale = 0
        for row in self.db.all("select * from job_events where project = {project} order by id", project=self.project):
            if row["event_type"] in ENDINGS:
                told[row["job_id"]].append((row["attempt"], row["fencing_token"], row["event_type"], row["cause"]))
            stale += row["event_type"] == "stale_write"
        assert told == {id: job.told for id, job in self.jobs.items()}
        assert stale == self.stale

    @invariant()
    def effects_are_of_the_attempt_that_completed(self) -> None:
        rows = self.db.all(
            "select e.job_id, e.fencing_token from executions e join ingest_jobs j on j.id = e.job_id "
            "where j.project = {project}",
            project=self.project,
        )
        assert {row["job_id"]: row["fencing_token"] for row in rows} == {
            job.id: job.effect for job in self.jobs.values() if job.effect is not None
        }

    @invariant()
    def the_outbox_hears_of_every_node_that_ended(self) -> None:
        kinds: dict[tuple[int, str], list[str]] = {}
        for row in self.db.all(
            "select j.id, e.kind from workflow_dispatch_events e join workflow_node_jobs j "
            "on j.run_id = e.run_id and j.node_id = e.node_id where j.project = {project} order by e.id",
            project=self.project,
        ):
            kinds.setdefault(row["id"], []).append(row["kind"])
        assert kinds == {job.id: job.outbox for job in self.jobs.values() if job.outbox}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    running, queued = row["status"] == "running", row["status"] == "queued"
    assert row["status"] not in TERMINAL or row["finished_at"] is not None
    return {
        **{
            name: row[name]
            for name in ("status", "priority", "attempt", "fencing_token", "failures", "losses", "watchdog_retries")
        },
        **{name: bool(row[name]) for name in ("is_priority", "cancel_requested", "kill_requested")},
        "owner": row["claimed_by"] if running else None,
        "begun": row["started_at"] is not None if running else None,
        "waits": row["run_after"] == FUTURE if queued else None,
        "leased": row["lease_expires_at"] is not None,
    }


@pytest.mark.timeout(900)
def test_any_order_of_events_leaves_rows_history_and_effects_that_agree(store: Store, db: Db) -> None:
    """Q1 Q2 Q7 Q12 Q23 Q29 Q31: no order of claims, ends, returns, sweeps, orders and late writes breaks the queue."""
    config.configure(shun_seconds=0.0, ingest_queues=("default",))
    registry.register_ingest_task("work", lambda **_: None)
    run_state_machine_as_test(lambda: QueueMachine(store, db), settings=SETTINGS)
