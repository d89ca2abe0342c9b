"""The users of the fleet: jobs and graphs, cancellations, replayed requests, and writes of attempts long gone."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import Conflict, EngineError, StaleClaim
from engine.queue import enqueue, lease, operate
from engine.queue.claim import ClaimRequest, claim
from engine.queue.family import Family, family_named
from engine.queue.finish import Outcome, complete_job, finish
from engine.queue.requeue import requeue
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.store.locks import new_incarnation
from tests.chaos.client import Client, Gone
from tests.chaos.door import Door
from tests.chaos.journal import Journal
from tests.chaos.options import GHOSTS, Options

Item = dict[str, Any]
Write = Callable[[Db, Item], bool]  # whether the late write was accepted


@dataclass
class Asked:
    """What was asked for and answered: the verdict compares it with what is there in the end."""

    jobs: dict[int, str] = field(default_factory=dict)  # id -> task of every job that was acknowledged
    runs: dict[int, int] = field(default_factory=dict)  # id -> the sum that its merge must come to
    keys: dict[str, tuple[int, Item]] = field(default_factory=dict)
    cancelled_jobs: set[int] = field(default_factory=set)
    cancelled_runs: set[int] = field(default_factory=set)
    replayed: int = 0
    refused: int = 0
    stale: int = 0


def plan(options: Options, pick: random.Random) -> list[Item]:
    """What is submitted, in its order: sixty in a hundred are ingest jobs, the rest nodes of diamonds."""
    items: list[Item] = []
    ingest = options.jobs * 6 // 10 if any(queue == "cpu" for _, queue in options.places) else options.jobs
    made = 0
    while made < ingest:
        kind = pick.choices(("plain", "effect", "steps", "flaky", "doomed", "batch"), (34, 32, 8, 14, 2, 1))[0]
        size = min(20, ingest - made) if kind == "batch" else 1
        args: Item = {"seconds": _seconds(pick)}
        if kind == "effect":
            args["value"] = made
        if kind == "flaky":
            args |= {"fails": pick.choice((1, 1, 2)), "seconds": args["seconds"] / 3}
        key = f"key-{made}" if kind != "batch" and pick.random() < 0.35 else None
        items.append(
            {
                "kind": kind,
                "size": size,
                "queue": pick.choice(options.ingest_queues),
                "args": args,
                "key": key,
                "priority": pick.choice((50, 100, 100, 100, 200)),
            }
        )
        made += size
    items += [
        {"kind": "diamond", "value": n, "seconds": [_seconds(pick) for _ in range(4)], "flavour": pick.random()}
        for n in range((options.jobs - ingest) // 4)
    ]
    pick.shuffle(items)
    return items


def _seconds(pick: random.Random) -> float:
    kind = pick.random()
    if kind < 0.8:
        return round(pick.uniform(0.0, 0.1), 3)
    return round(pick.uniform(0.2, 0.6) if kind < 0.95 else pick.uniform(1.0, 4.0), 3)


def diamond(item: Item) -> dict[str, Any]:
    a, b, c, d = item["seconds"]
    effect = "branch_effect" if item["flavour"] < 0.5 else "branch"
    whole = {"$from": "a.value"}
    return {
        "name": "diamond",
        "nodes": [
            {"id": "a", "node": "source", "inputs": {"value": {"$context": "value"}, "seconds": a}, "max_attempts": 3},
            {"id": "b", "node": effect, "depends_on": ["a"], "inputs": {"value": whole, "add": 1, "seconds": b}, "max_attempts": 6},
            {"id": "c", "node": "branch", "depends_on": ["a"], "inputs": {"value": whole, "add": 2, "seconds": c}, "max_attempts": 3},
            {
                "id": "d",
                "node": "merge",
                "depends_on": ["b", "c"],
                "inputs": {"left": {"$from": "b.value"}, "right": {"$from": "c.value"}, "seconds": d},
                "max_attempts": 3,
            },
        ],
    }  # fmt: skip


class Load:
    """Threads that use the fleet until their work is done. ``asked`` is theirs until they have ended."""

    def __init__(self, options: Options, store: Store, journal: Journal, stop: threading.Event, door: Door) -> None:
        self.options, self.store, self.journal, self.stop, self.door = options, store, journal, stop, door
        self.asked = Asked()
        self.items = plan(options, random.Random(options.seed))
        self._recent: list[tuple[str, int]] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, work), name=name, daemon=True)
            for name, work in (
                ("submitter", self._submit),
                ("canceller", self._cancel),
                ("replayer", self._replay),
                ("ghost", self._write_late),
            )
        ]

    def start(self) -> None:
        self.began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for all of them; a breach for each that does not end."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
            if thread.is_alive():
                self.journal.breach("harness", f"the {thread.name} did not end")

    def _guarded(self, name: str, work: Callable[[Client, random.Random], None]) -> None:
        client = Client(self.store, name, self.stop)
        try:
            work(client, random.Random(f"{self.options.seed} {name}"))
        except Gone as error:
            if not self.stop.is_set():
                self.journal.breach("harness", str(error))
        except Exception as error:
            self.journal.breach("harness", f"{name}: {type(error).__name__}: {error}")
        finally:
            client.close()

    def _paced(self, count: int, share: float = 1.0) -> Any:
        """0 .. count-1, spread over the time of submission."""
        for n in range(count):
            due = self.began + self.options.feed_s * share * n / max(1, count)
            if self.stop.wait(max(0.0, due - time.monotonic())):
                raise Gone("over")
            yield n

    # --- submitting ---

    def _submit(self, client: Client, pick: random.Random) -> None:
        for n in self._paced(len(self.items)):
            item = self.items[n]
            if item["kind"] == "diamond":
                run = self.door.attempt(client, lambda user, it=item: user.start(diamond(it), {"value": it["value"]}))
                if run is not None:
                    self.asked.runs[run] = 2 * item["value"] + 3
                    self._recent.append(("run", run))
            elif item["kind"] == "batch":
                ids = self.door.attempt(client, lambda user, it=item: user.put_many(it))
                self.asked.jobs |= dict.fromkeys(ids or (), "plain")
            else:
                self._submit_one(client, item)
        self.journal.did("submitted", jobs=len(self.asked.jobs), runs=len(self.asked.runs))

    def _submit_one(self, client: Client, item: Item) -> None:
        ask = self.door.call if item["key"] else self.door.attempt
        answer = ask(client, lambda user: user.put(item))
        if answer is None:
            return
        id = answer[0]
        self.asked.jobs[id] = item["kind"]
        self._recent.append(("job", id))
        if item["key"]:
            self.asked.keys[item["key"]] = (id, item)

    # --- cancelling ---

    def _cancel(self, client: Client, pick: random.Random) -> None:
        done = 0
        for _ in self._paced(self.options.cancels * 4):
            if done >= self.options.cancels or not self._recent:
                continue
            kind, id = pick.choice(self._recent[-30:])
            if kind == "run" and pick.random() < 0.5:
                continue
            answer = self.door.attempt(client, lambda user, k=kind, i=id: user.cancel(k, i))
            if answer is not None and answer[0]:
                done += 1
                (self.asked.cancelled_runs if kind == "run" else self.asked.cancelled_jobs).add(id)
                self.journal.did(f"cancel_{kind}", id=id, said=answer[1])
            if kind == "job" and pick.random() < 0.1:
                act = pick.choice((operate.run_next, operate.kill_job))
                client.attempt(lambda db, a=act, i=pick.choice(self._recent[-30:])[1]: _quiet(a, db, i))
                self.journal.did(act.__name__)
        self.journal.did("cancelled", count=done)

    # --- replaying ---

    def _replay(self, client: Client, pick: random.Random) -> None:
        for _ in self._paced(self.options.replays):
            while not (keys := list(self.asked.keys)):
                if self.stop.wait(0.1):
                    raise Gone("over")
            key = pick.choice(keys)
            id, item = self.asked.keys[key]
            if pick.random() < 0.8:
                again, existing = self.door.call(client, lambda user, it=item: user.put(it))
                if not existing or again != id:
                    self.journal.breach("key", f"{key}: job {id} was made again as job {again}")
                self.asked.replayed += 1
            else:
                other = {**item, "args": {**item["args"], "seconds": 99.0}}
                try:
                    self.door.call(client, lambda user, it=other: user.put(it))
                    self.journal.breach("key", f"{key}: another body was not refused")
                except Conflict:
                    self.asked.refused += 1
        self.journal.did("replayed", same=self.asked.replayed, refused=self.asked.refused)

    # --- writes of attempts that are over ---

    def _write_late(self, client: Client, pick: random.Random) -> None:
        """Ends, effects and progress of attempts that were given away, as a lane would send them that woke up late."""
        for n in self._paced(self.options.stale_writes, share=1.1):
            write = pick.choice((_late_finish, _late_finish, _late_effect, _late_progress))
            if n % 2:
                told = client.attempt(lambda db, w=write: self._haunt(db, w))
            else:
                told = client.attempt(lambda db, w=write: self._revive(db, w, pick))
            if told is None:
                continue
            accepted, row = told
            self.asked.stale += 1
            self.journal.did("stale_write", how=write.__name__, job=row["job_id"], fence=row["old_fence"])
            if accepted:
                text = f"{row['family']} job {row['job_id']}: {write.__name__} with fence {row['old_fence']}"
                self.journal.breach("stale_accepted", f"{text} of {row['old_owner']} was accepted")
        self.journal.did("wrote_late", count=self.asked.stale)

    def _revive(self, db: Db, write: Write, pick: random.Random) -> tuple[bool, Item] | None:
        """Of a real lane's attempt that is over; of one whose job runs again, if there is any."""
        rows = db.all(
            "select a.family, a.job_id, a.old_fence, a.old_owner, case when j.status = 'running' then 1 else 0 end as runs "
            "from chaos_audit a join ingest_jobs j on j.id = a.job_id where a.old = 'running' and a.new = 'queued' "
            "and j.fencing_token > a.old_fence order by a.id desc limit 100"
        )
        if not rows:
            return None
        row = pick.choice([row for row in rows if row["runs"]] or rows)
        return write(db, row), row

    def _haunt(self, db: Db, write: Write) -> tuple[bool, Item] | None:
        """Two lanes of our own and one job: the first loses it, the second has it, then the first writes."""
        clear_ghosts(db)
        job = enqueue.enqueue(db, task_name="effect", queue=GHOSTS)
        first, second = (Worker(GHOSTS, GHOSTS, "", new_incarnation()) for _ in range(2))
        if not self._claims(db, first, int(job.id)):
            return None
        requeue(db, first, {int(job.id): 1}, "operator_stop")
        if not self._claims(db, second, int(job.id)):
            return None
        row = {"family": "ingest", "job_id": int(job.id), "old_fence": 1, "old_owner": first.owner}
        accepted = write(db, row)
        ghost = Ghost(family_named("ingest"), int(job.id), 2, second.owner)
        with contextlib.suppress(StaleClaim), db.transaction():  # a leader may have given it away meanwhile
            db.run(
                "insert into chaos_effects (job_id, fence, attempt, worker) values ({id}, 2, 2, {worker})",
                id=ghost.id, worker=ghost.worker,
            )  # fmt: skip
            complete_job(db.raw, ghost, {"by": "the second"})
        return accepted, row

    def _claims(self, db: Db, worker: Worker, job: int) -> bool:
        return [each.id for each in claim(db, ClaimRequest(worker, 1, 600.0))] == [job]


def clear_ghosts(db: Db) -> None:
    """Cancel what a lost connection left of a haunting: no lane serves that queue."""
    rows = db.all("select id from ingest_jobs where queue = {queue} and status in ('queued', 'running')", queue=GHOSTS)
    for row in rows:
        operate.cancel_job(db, row["id"], "chaos")


@dataclass(frozen=True)
class Ghost:
    """What a task of a lost attempt still believes of itself."""

    family: Family
    id: int
    fencing_token: int
    worker: str


def _late_finish(db: Db, row: Item) -> bool:
    worker = Worker(*row["old_owner"].split("/")[:2], "", row["old_owner"].rsplit("/", 1)[-1])
    answer = finish(db, worker, [Outcome(row["job_id"], row["old_fence"], "completed", '{"late": true}')])
    return row["job_id"] not in answer.stale


def _late_effect(db: Db, row: Item) -> bool:
    ghost = Ghost(family_named(row["family"]), row["job_id"], row["old_fence"], row["old_owner"])
    try:
        with db.transaction():
            complete_job(db.raw, ghost, {"late": True})
    except StaleClaim:
        return False
    return True


def _late_progress(db: Db, row: Item) -> bool:
    report = (row["job_id"], row["old_fence"], 99.0, "late")
    box, queue, incarnation = row["old_owner"].split("/")
    return row["job_id"] not in lease.progress(db, Worker(box, queue, "", incarnation), [report])


def _quiet(act: Callable[..., Any], db: Db, id: int) -> None:
    try:
        act(db, id, "chaos")
    except EngineError:
        pass
