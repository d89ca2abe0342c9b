"""What is worth telling somebody who looks at no deck: boxes that died or came back, lost lanes, failed runs, poison jobs,
throttling, GPUs that are slow without a reason.

The leader looks at the present rows, over and over. What it has told stands in the one row of ``notices``: the episodes that are
open, and up to where the histories were read. Each notice is a row of ``control_events`` (action ``alert``),
written in the transaction that moves the mark: a leader that dies in between, or a database that restarts, neither repeats nor
misses one. On the way to the command a message may come twice, after a crash in the middle; its ``id`` tells.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine import config
from engine.orchestrator.notice import Notice, box_back, failed_run, poison_job, throttled
from engine.orchestrator.notify import Courier, Pending, Told, message
from engine.orchestrator.side import SweepLoop
from engine.orchestrator.silence import silent
from engine.orchestrator.sweeps import Clock, PartlyDone, Sweep
from engine.store import Db, Json, Store
from engine.telemetry import limits_file, slow, throttle_now
from engine.telemetry.limits_file import Classes

log = logging.getLogger("engine.orchestrator")

ACTION = "alert"

LOOK_S = 2.0
LATE_COMMIT_S = 10.0  # an id may be seen so long after a higher one
ROWS = 200  # of one kind in one look; the rest in the next
SCAN = 100_000  # ids of a history in one look
RUNS_KNOWN = 5000
PENDING_MOST = 2000
THROTTLE_EVERY_S = 15.0


@dataclass
class State:
    """What is remembered. ``open``: episodes by key, and whether they were told (those before the first look were not)."""

    levels_known: bool = False
    events: int | None = None  # job_events read up to here,
    outbox: int | None = None  # workflow_dispatch_events up to here
    alerts: int | None = None  # control_events up to here
    open: dict[str, bool] = field(default_factory=dict)
    late_alerts: list[int] = field(default_factory=list)  # of recorders, already told, above the mark
    late: list[int] = field(default_factory=list)  # poison jobs already told, whose ids are above the mark
    runs: list[int] = field(default_factory=list)  # told as failed, newest last
    watched: list[int] = field(default_factory=list)  # a node of theirs failed, they have not ended yet
    pending: list[list[Any]] = field(default_factory=list)  # [id of the row, kind]: not told to the command yet
    more: dict[str, int] = field(default_factory=dict)  # by kind: fell out of the list
    turn: int = 0

    @classmethod
    def read(cls, kept: Any) -> State:
        if not isinstance(kept, Mapping):
            return cls()
        return cls(**{name: value for name, value in kept.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class _Tops:
    """The newest ids of the histories at a moment of our clock."""

    at: float
    events: int
    outbox: int
    alerts: int


class Notices:
    """The sweep of one leader. ``courier`` None: notices are rows only. ``classes``: levels that count before the known ones."""

    def __init__(self, courier: Courier | None = None, clock: Clock = time.monotonic, classes: Classes = ()) -> None:
        self._courier = courier
        self._classes = classes
        self._clock = clock
        self._db: Db | None = None
        self._began = 0.0
        self._throttle_at = float("-inf")
        self._held: dict[str, throttle_now.Held] = {}
        self._tops: list[_Tops] = []

    def sweep(self) -> Sweep:
        return Sweep("notices", LOOK_S, self.look, self._clock)

    def look(self, db: Db) -> int:
        """Write what is new and hand it to the command; the number of notices. Raises PartlyDone while that fails."""
        now = self._clock()
        if (
            db is not self._db
        ):  # a new session: the server may have restarted, nobody's silence counts before it had its time
            self._db, self._began, self._tops = db, now, []
        state = _read(db)
        before = json.dumps(asdict(state))
        self._histories_begin(db, state)
        notices = [*self._poison(db, state), *self._runs(db, state), *self._levels(db, state, now)]
        passed_on = self._slow(db, state)
        self._advance(state, now)
        told = self._courier.collect() if self._courier is not None else None
        if told is not None:
            _forget(state, told)
        changed = notices or passed_on or told or json.dumps(asdict(state)) != before
        if changed:
            self._write(db, state, notices)
        self._send(db)
        if self._courier is not None and self._courier.error:
            raise PartlyDone(f"on-event command: {self._courier.error}", len(notices))
        return len(notices) + passed_on

    def end(self, store: Store) -> None:
        """The lead is over: a command that runs has a moment to end; what it took is written down."""
        told = self._courier.close(3.0) if self._courier is not None else None
        if told is None:
            return
        try:
            with store.connect("notices", timeout_s=2.0) as db:
                state = _read(db)
                _forget(state, told)
                self._write(db, state, [])
        except Exception as error:  # the next leader tells it once more
            log.warning("what the on-event command took could not be written: %s", error)

    # -- what happened since the mark

    def _histories_begin(self, db: Db, state: State) -> None:
        tops = db.one(
            "select (select max(id) from job_events) as events, (select max(id) from workflow_dispatch_events) as outbox, "
            "(select max(id) from control_events) as alerts"
        )
        events, outbox, alerts = (int((tops or {}).get(name) or 0) for name in ("events", "outbox", "alerts"))
        if state.events is None or state.outbox is None:
            state.events, state.outbox = events, outbox
        state.alerts = alerts if state.alerts is None else state.alerts
        seen = [
            min(top, mark + SCAN)
            for top, mark in ((events, state.events), (outbox, state.outbox), (alerts, state.alerts))
        ]
        self._tops.append(_Tops(self._clock(), *seen))

    def _advance(self, state: State, now: float) -> None:
        """Move the marks up to what was the newest a while ago: whatever has a lower id is committed by now."""
        while self._tops and (now - self._tops[0].at >= LATE_COMMIT_S or self._full(state)):
            top = self._tops.pop(0)
            state.events, state.outbox = max(state.events or 0, top.events), max(state.outbox or 0, top.outbox)
            state.alerts = max(state.alerts or 0, top.alerts)
        state.late = [number for number in state.late if number > (state.events or 0)]
        state.late_alerts = [number for number in state.late_alerts if number > (state.alerts or 0)]

    def _full(self, state: State) -> bool:
        """A whole batch of old rows was read: they are committed, and more wait behind them."""
        top = self._tops[0]
        marks = ((top.events, state.events), (top.outbox, state.outbox), (top.alerts, state.alerts))
        return any(newest >= (mark or 0) + SCAN for newest, mark in marks)

    def _poison(self, db: Db, state: State) -> list[Notice]:
        """Jobs that failed because they felled executors or lanes until their retries were spent."""
        rows = db.all(
            "select id, family, job_id, run_id, node_id, box, queue, project, cause, exit_code, detail from job_events "
            "where id > {mark} and id <= {until} and event_type = 'failed' "
            "and cause in ('executor_died', 'trip', 'lane_lost', 'lease_lapsed') order by id limit {n}",
            mark=state.events,
            until=self._tops[-1].events,
            n=ROWS + len(state.late),
        )
        new = [row for row in rows if row["id"] not in set(state.late)][:ROWS]
        state.late += [row["id"] for row in new]
        if len(new) == ROWS:  # the mark must not pass what this look had no room for
            self._tops[-1] = replace(self._tops[-1], events=new[-1]["id"])
        return [poison_job(row) for row in new]

    def _runs(self, db: Db, state: State) -> list[Notice]:
        """Runs that failed: seen by the outbox, which every end of a node and every dispatch that fails passes."""
        hints = db.all(
            "select distinct run_id from (select run_id from workflow_dispatch_events where id > {mark} and id <= {until} "
            "and (kind = 'failed' or node_id = '' or attempts > 0) union all "
            "select run_id from (select run_id from workflow_dispatch_events where processed_at is null and attempts > 0 "
            "limit {n}) tried) hints",
            mark=state.outbox,
            until=self._tops[-1].outbox,
            n=ROWS,
        )
        known = set(state.runs)
        watched = {row["run_id"] for row in hints} | set(state.watched)
        ids = sorted(watched - known)
        if not ids:
            state.watched = []
            return []
        rows = db.all(
            "select id, workflow_name, status, error, project from workflow_runs where id {any[ids]} order by id",
            ids=ids,
        )
        state.watched = [row["id"] for row in rows if row["status"] in ("queued", "running")][:ROWS]
        failed = [row for row in rows if row["status"] == "failed"]
        state.runs = [*state.runs, *(row["id"] for row in failed)][-RUNS_KNOWN:]
        return [failed_run(row) for row in failed]

    def _slow(self, db: Db, state: State) -> int:
        """Pass on what recorders found slow without a reason: they judge, with hysteresis, and have written the row."""
        rows = db.all(
            "select id, detail from control_events where id > {mark} and id <= {until} and action = {action} "
            "and requested_by like 'recorder@%' order by id limit {n}",
            mark=state.alerts,
            until=self._tops[-1].alerts,
            action=ACTION,
            n=ROWS + len(state.late_alerts),
        )
        new = [row for row in rows if row["id"] not in set(state.late_alerts)][:ROWS]
        state.late_alerts += [row["id"] for row in new]
        if len(new) == ROWS:
            self._tops[-1] = replace(self._tops[-1], alerts=new[-1]["id"])
        told = [
            row["id"] for row in new if isinstance(row["detail"], Mapping) and row["detail"].get("kind") == slow.KIND
        ]
        if self._courier is not None:
            state.pending += [[number, slow.KIND] for number in told]
        return len(told)

    # -- what is

    def _levels(self, db: Db, state: State, now: float) -> list[Notice]:
        """Episodes that began or ended, judged by silence and by the recorders' minutes."""
        if now - self._began < float(config.get("leader_up_seconds")):
            return []
        present = silent(db)
        if now - self._throttle_at >= THROTTLE_EVERY_S:
            self._held, self._throttle_at = throttle_now.held(db, self._classes), now
        for held in self._held.values():
            key = f"throttling|{held.box}"
            if held.above or (key in state.open and not held.below):
                present[key] = throttled(held, key)
        if not state.levels_known:
            state.levels_known = True
            state.open = dict.fromkeys(present, False)
            return []
        ended = [key for key in state.open if key not in present]
        begun = [key for key in present if key not in state.open]
        back = [box_back(key) for key in ended if key.startswith("box_dead|") and state.open[key]]
        state.open = {key: told for key, told in state.open.items() if key in present} | dict.fromkeys(begun, True)
        told = [present[key] for key in begun]
        return [one for one in told if one.kind != "lane_lost" or f"box_dead|{one.box}" not in present] + back

    # -- rows and messages

    def _write(self, db: Db, state: State, notices: Sequence[Notice]) -> bool:
        """Rows and state in one transaction; False: another leader was quicker, the next look starts from its state."""
        with db.transaction():
            if _read(db, lock=True).turn != state.turn:
                return False
            state.turn += 1
            for notice in notices:
                row = db.one(
                    "insert into control_events (at, project, box, queue, action, requested_by, detail) values "
                    "({clock}, {project}, {box}, {queue}, {action}, {by}, {detail}) returning id",
                    project=notice.project,
                    box=notice.box,
                    queue=notice.queue,
                    action=ACTION,
                    by=f"orchestrator@{config.box_name()}",
                    detail=Json({"kind": notice.kind, "text": notice.text, **notice.detail}),
                )
                if row is not None and self._courier is not None:
                    state.pending.append([row["id"], notice.kind])
            while len(state.pending) > PENDING_MOST:
                _, kind = state.pending.pop(0)
                state.more[kind] = state.more.get(kind, 0) + 1
            db.run(
                "insert into notices (id, detail, updated_at) values (1, {state}, {clock}) "
                "on conflict (id) do update set detail = excluded.detail, updated_at = excluded.updated_at",
                state=Json(asdict(state)),
            )
        for notice in notices:
            log.warning("%s: %s", notice.kind, notice.text)
        return True

    def _send(self, db: Db) -> None:
        if self._courier is None or self._courier.busy:
            return
        state = _read(db)
        rows = self._courier.pick([Pending(int(number), str(kind)) for number, kind in state.pending])
        if not rows:
            return
        found = db.all(
            "select id, at, project, box, queue, detail from control_events where id {any[ids]} order by id",
            ids=[row.id for row in rows],
        )
        if found:
            self._courier.send(rows, message(found, state.more.get(rows[0].kind, 0) if len(rows) > 1 else 0))
        else:  # retention, or somebody, took the rows away: there is nothing to tell
            _forget(state, Told(tuple(row.id for row in rows), rows[0].kind, None))
            self._write(db, state, [])


class NoticesLoop(SweepLoop):
    """The sweep on a thread and a connection of its own: neither its questions nor the command hold up a graph."""

    def __init__(self, store: Store, courier: Courier | None, timeout_s: float) -> None:
        self._notices = Notices(courier, classes=limits_file.configured())
        super().__init__("notices", store, [self._notices.sweep()], timeout_s)
        self._ending = store

    def stop(self, timeout_s: float = 8.0) -> None:
        super().stop(timeout_s)
        self._notices.end(self._ending)


def _read(db: Db, lock: bool = False) -> State:
    row = db.one(
        "select detail from notices where id = 1" + (" for update" if lock and db.kind == "postgresql" else "")
    )
    return State.read(row["detail"] if row else None)


def _forget(state: State, told: Told) -> None:
    gone = set(told.ids)
    state.pending = [one for one in state.pending if one[0] not in gone]
    if len(told.ids) > 1:
        state.more.pop(told.kind, None)
