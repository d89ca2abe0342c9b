"""Orders to the fleet: what an action means in terms of lanes, and a worker thread that carries it out.

The thread has a database connection of its own and is a daemon: a database that does not answer never holds up a key,
nor the exit. Every order has a deadline; what becomes of it is told by one line.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flightdeck.model.fleet import Box, Job, Lane

if TYPE_CHECKING:
    from engine.store import Store

DEADLINE_S = 8.0
PENDING_MOST = 8


@dataclass(frozen=True)
class Call:
    """One call of the engine (``engine.queue.operate``, a retry, an order about a model): its name and arguments."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What one keypress asks for: its calls, in words, and what takes it back (empty: cannot be undone)."""

    text: str
    calls: tuple[Call, ...]
    undo: tuple[Call, ...] = ()
    takes_back: bool = False  # this order is itself an undo


@dataclass(frozen=True)
class Outcome:
    order: Order
    ok: bool
    text: str


@dataclass(frozen=True)
class JobTarget:
    """The job that a key is about, as a page knows it. ``status`` as in the database."""

    id: str
    family: str  # node or ingest
    name: str
    queue: str = ""
    box: str = ""
    project: str = ""  # as it is shown: ``-`` has no name
    run_id: str = ""
    status: str = "running"


@dataclass(frozen=True)
class QueueTarget:
    """A queue of one project, on every box, by the names that an order must write."""

    queue: str
    project: str


def job_target(box: Box, job: Job) -> JobTarget:
    """A running job of the view."""
    return JobTarget(job.id, job.family, job.name, job.queue, box.name, job.project, job.run_id)


def lane_order(action: str, targets: Sequence[tuple[Box, Lane]], policy: str, who: str, text: str) -> Order:
    """Park or resume lanes, each named on its own; undo restores what was wanted of each before."""
    calls, undo = [], []
    for box, row in targets:
        for lane in row.parts:
            calls.append(_lane_call(action, box.raw, lane, policy, who))
            undo.append(_restore(box.raw, lane, who))
    return Order(text, tuple(calls), tuple(undo))


def queue_order(
    action: str, queue_name: str, projects: Sequence[str], boxes: Sequence[Box], policy: str, who: str, text: str
) -> Order:
    """One order per project for a queue on every box, also on boxes that come later. Undo orders the reverse for all,
    then restores the lanes that stood otherwise."""
    calls, undo = [], []
    for project in projects:
        lanes = [
            (box, lane)
            for box in boxes
            for lane in box.lanes
            if (lane.raw_queue, lane.raw_project) == (queue_name, project)
        ]
        where: dict[str, Any] = {"box": "*", "queue": queue_name, "project": project, "requested_by": who}
        calls.append(_call(action, where, policy))
        reverse = "resume" if action == "park" else "park"
        if any((lane.desired == "on") == (reverse == "resume") for _, lane in lanes):
            undo.append(_call(reverse, where, "drain"))
            undo += [
                _restore(box.raw, lane, who) for box, lane in lanes if (lane.desired == "on") != (reverse == "resume")
            ]
    return Order(text, tuple(calls), tuple(undo))


def cordon_order(box: Box, projects: Sequence[str], policy: str, who: str, lift: bool, text: str) -> Order:
    """Cordon (or lift it) for each project that has a lane on the box."""
    calls = []
    undo = []
    for project in projects:
        where: dict[str, Any] = {"box": box.raw, "project": project, "requested_by": who}
        on, off = Call("cordon", {**where, "policy": policy}), Call("uncordon", where)
        calls.append(off if lift else on)
        undo.append(Call("cordon", {**where, "policy": "drain"}) if lift else off)
    return Order(text, tuple(calls), tuple(undo))


def job_order(name: str, job_id: str, who: str, text: str) -> Order:
    return Order(text, (Call(name, {"job_id": job_id, "requested_by": who}),))


def retry_order(job: JobTarget, who: str, text: str) -> Order:
    """A failed node is run again with its run, whose finished nodes are taken over; an ingest job by itself."""
    if job.family == "node":
        return Order(text, (Call("retry_run", {"run_id": job.run_id, "requested_by": who}),))
    return job_order("retry_job", job.id, who, text)


def input_order(run_id: str, node_id: str, value: Any, who: str, text: str) -> Order:
    """Give a node that waits for a person its input."""
    arguments = {"run_id": run_id, "node_id": node_id, "value": value, "requested_by": who}
    return Order(text, (Call("give_input", arguments),))


def model_order(action: str, model: str, box: str, lane: Lane, who: str, text: str) -> Order:
    """Load a model into a free slot of the lanes behind a row, or have them drop it."""
    calls = [
        {"action": action, "model": model, "box": box, "queue": part.raw_queue, "project": part.raw_project}
        for part in lane.parts
    ]
    return Order(text, tuple(Call("order_model", {**call, "requested_by": who}) for call in calls))


def _lane_call(action: str, box: str, lane: Lane, policy: str, who: str) -> Call:
    where = {"box": box, "queue": lane.raw_queue, "project": lane.raw_project, "requested_by": who}
    return _call(action, where, policy)


def _call(action: str, where: dict[str, Any], policy: str) -> Call:
    return Call(action, {**where, "policy": policy} if action == "park" else dict(where))


def _restore(box: str, lane: Lane, who: str) -> Call:
    """An order that wants of a lane what is wanted of it now."""
    if lane.desired == "on":
        return _lane_call("resume", box, lane, "", who)
    return _lane_call("park", box, lane, lane.policy if lane.policy in ("hard", "drain") else "hard", who)


@dataclass
class OrderDesk:
    """Carries out orders one after the other; ``report`` is called from its thread."""

    opener: Callable[[], Store]
    report: Callable[[Outcome], None]
    pending: int = 0
    _queue: queue.SimpleQueue[Order | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _store: Store | None = None

    def submit(self, order: Order) -> bool:
        """False: too many are waiting for a database that does not answer."""
        if self.pending >= PENDING_MOST:
            return False
        self.pending += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="orders", daemon=True)
            self._thread.start()
        self._queue.put(order)
        return True

    def close(self) -> None:
        """Ask the thread to end; never waits for it."""
        self._queue.put(None)

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            outcome = self._carry_out(order)
            self.pending -= 1
            self.report(outcome)

    def _carry_out(self, order: Order) -> Outcome:
        from engine.errors import EngineError

        began = time.monotonic()
        try:
            if self._store is None:
                self._store = self.opener()
            with self._store.connect("deck orders", timeout_s=DEADLINE_S / 2) as db:
                with db.transaction():
                    done = [_function(call.name)(db, **call.arguments) for call in order.calls]
            return Outcome(
                order, True, _sum_up(order, [item.message for item in done], sum(item.changed for item in done))
            )
        except EngineError as error:
            return Outcome(order, False, f"{order.text}: {error}")
        except Exception as error:  # whatever the driver says: the operator must see that nothing was done
            late = " (no answer)" if time.monotonic() - began > DEADLINE_S / 2 else ""
            return Outcome(order, False, f"{order.text}: {type(error).__name__}: {error}{late}")


def _function(name: str) -> Callable[..., Any]:
    """What carries a call out. Imported on the desk's thread, when something is ordered."""
    from engine.dag.inputs import give_input
    from engine.dag.retry import retry_run
    from engine.queue import operate
    from engine.queue.models import order_model

    elsewhere: dict[str, Callable[..., Any]] = {
        "retry_run": retry_run,
        "order_model": order_model,
        "give_input": give_input,
    }
    return elsewhere.get(name) or getattr(operate, name)


def _sum_up(order: Order, messages: list[str], changed: int) -> str:
    if len(messages) == 1:
        return messages[0]
    return (
        f"{order.text}: {changed} of {len(messages)} orders changed something"
        if changed < len(messages)
        else order.text
    )
