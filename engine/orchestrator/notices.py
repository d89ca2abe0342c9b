"""What is worth telling somebody who looks at no deck: boxes that died or came back, lost lanes, failed runs, poison jobs,
throttling.

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
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from engine import config
from engine.orchestrator.notice import Notice, box_back, dead_box, failed_run, poison_job, throttled
from engine.orchestrator.notify import Courier, Pending, Told, message
from engine.orchestrator.side import SweepLoop
from engine.orchestrator.sweeps import Clock, PartlyDone, Sweep
from engine.store import Db, Json, Store
from engine.telemetry import throttle_now
from engine.telemetry.rows import AHEAD_S

log = logging.getLogger("engine.orchestrator")

ACTION = "alert"

LOOK_S = 2.0
SILENT_S = 30.0  # as the deck and the heartbeats' flag have it
LANE_SILENT_S = 42.0  # longer: the lanes of a box beat 10 s apart, and the death of the box is told instead of theirs
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
    open: dict[str, bool] = field(default_factory=dict)
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


class Notices:
    """The sweep of one leader. ``courier`` None: notices are rows only."""

    def __init__(self, courier: Courier | None = None, clock: Clock = time.monotonic) -> None:
        self._courier = courier
        self._clock = clock
        self._db: Db | None = None
        self._began = 0.0
        self._throttle_at = float("-inf")
        self._held: dict[str, throttle_now.Held] = {}
        self._tops: list[tuple[float, int, int]] = []  # when, and the newest ids of both histories then

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
        self._advance(state, now)
        told = self._courier.collect() if self._courier is not None else None
        if told is not None:
            _forget(state, told)
        changed = notices or told or json.dumps(asdict(state)) != before
        if changed:
            self._write(db, state, notices)
        self._send(db)
        if self._courier is not None and self._courier.error:
            raise PartlyDone(f"on-event command: {self._courier.error}", len(notices))
        return len(notices)

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
            "select (select max(id) from job_events) as events, (select max(id) from workflow_dispatch_events) as outbox"
        )
        events, outbox = int((tops or {}).get("events") or 0), int((tops or {}).get("outbox") or 0)
        if state.events is None or state.outbox is None:
            state.events, state.outbox = events, outbox
        self._tops.append((self._clock(), min(events, state.events + SCAN), min(outbox, state.outbox + SCAN)))

    def _advance(self, state: State, now: float) -> None:
        """Move the marks up to what was the newest a while ago: whatever has a lower id is committed by now."""
        while self._tops and (now - self._tops[0][0] >= LATE_COMMIT_S or self._full(state)):
            _, events, outbox = self._tops.pop(0)
            state.events, state.outbox = max(state.events or 0, events), max(state.outbox or 0, outbox)
        state.late = [number for number in state.late if number > (state.events or 0)]

    def _full(self, state: State) -> bool:
        """A whole batch of old rows was read: they are committed, and more wait behind them."""
        _, events, outbox = self._tops[0]
        return events >= (state.events or 0) + SCAN or outbox >= (state.outbox or 0) + SCAN

    def _poison(self, db: Db, state: State) -> list[Notice]:
        """Jobs that failed because they felled executors or lanes until their retries were spent."""
        rows = db.all(
            "select id, family, job_id, run_id, node_id, box, queue, project, cause, exit_code, detail from job_events "
            "where id > {mark} and id <= {until} and event_type = 'failed' "
            "and cause in ('executor_died', 'trip', 'lane_lost', 'lease_lapsed') order by id limit {n}",
            mark=state.events,
            until=self._tops[-1][1],
            n=ROWS + len(state.late),
        )
        new = [row for row in rows if row["id"] not in set(state.late)][:ROWS]
        state.late += [row["id"] for row in new]
        if len(new) == ROWS:  # the mark must not pass what this look had no room for
            when, _, outbox = self._tops[-1]
            self._tops[-1] = (when, new[-1]["id"], outbox)
        return [poison_job(row) for row in new]

    def _runs(self, db: Db, state: State) -> list[Notice]:
        """Runs that failed: seen by the outbox, which every end of a node and every dispatch that fails passes."""
        hints = db.all(
            "select distinct run_id from (select run_id from workflow_dispatch_events where id > {mark} and id <= {until} "
            "and (kind = 'failed' or node_id = '' or attempts > 0) union all "
            "select run_id from (select run_id from workflow_dispatch_events where processed_at is null and attempts > 0 "
            "limit {n}) tried) hints",
            mark=state.outbox,
            until=self._tops[-1][2],
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

    # -- what is

    def _levels(self, db: Db, state: State, now: float) -> list[Notice]:
        """Episodes that began or ended, judged by silence and by the recorders' minutes."""
        if now - self._began < float(config.get("leader_up_seconds")):
            return []
        present = _silence(db)
        if now - self._throttle_at >= THROTTLE_EVERY_S:
            self._held, self._throttle_at = throttle_now.held(db), now
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
        self._notices = Notices(courier)
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


def _silence(db: Db) -> dict[str, Notice]:
    """Dead boxes and lost lanes, by key. A box that went in order (its lanes say so, its recorder took its row) is not
    dead."""
    now = db.now()
    lanes = db.all("select box, queue, project, state, last_seen from worker_heartbeats")
    boxes = db.all(
        "select b.box, (select max(x.at) from flight_recorder x where x.box = b.box and x.tier = 'detail' "
        "and x.at <= {after[ahead]}) as last_at, "
        "(select count(*) from services s where s.kind = 'recorder' and s.box = b.box) as recorders from boxes b",
        ahead=AHEAD_S,
    )
    signs: dict[str, list[datetime]] = {}
    works: set[str] = set()
    for row in boxes:
        if isinstance(row["box"], str):
            signs.setdefault(row["box"], []).extend([row["last_at"]] if row["last_at"] else [])
            works |= {row["box"]} if row["recorders"] else set()
    for row in lanes:
        if isinstance(row["box"], str):
            signs.setdefault(row["box"], []).append(row["last_seen"])
            works |= {row["box"]} if row["state"] != "stopping" else set()
    found: dict[str, Notice] = {}
    for box, times in signs.items():
        silent = (now - max(times)).total_seconds() if times else 0.0
        if silent > SILENT_S and box in works:
            queues = sorted({str(row["queue"]) for row in lanes if row["box"] == box and row["state"] != "stopping"})
            key = f"box_dead|{box}"
            found[key] = dead_box(db, box, silent, queues, key)
    for row in lanes:
        silent = (now - row["last_seen"]).total_seconds()
        if silent <= LANE_SILENT_S or row["state"] == "stopping":
            continue
        where = f"{row['box']}/{row['queue']}" + (f" (project {row['project']})" if row["project"] else "")
        key = f"lane_lost|{row['box']}|{row['queue']}|{row['project']}"
        found[key] = Notice(
            "lane_lost", f"lane {where} has been silent for {silent:.0f} s", key, str(row["box"]), str(row["queue"]),
            str(row["project"]), {"silent_s": round(silent, 1)},
        )  # fmt: skip
    return found
