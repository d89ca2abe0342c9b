"""How the users of a run reach the fleet: by the engine's functions on a connection of their own, or over HTTP."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from engine.dag.runs import submit_run
from engine.errors import Conflict
from engine.queue import enqueue, operate
from engine.store import Db
from tests.chaos.client import Client, Gone
from tests.chaos.journal import Journal

T = TypeVar("T")
Item = dict[str, Any]
ANSWER_S = 20.0


class User(Protocol):
    """What a user does. Each raises what says that the answer was lost."""

    def put(self, item: Item) -> tuple[int, bool]:
        """(id of the job, whether an earlier request had made it). Raises Conflict: the key was used with another body."""
        ...

    def put_many(self, item: Item) -> list[int]: ...
    def start(self, graph: dict[str, Any], context: dict[str, Any]) -> int: ...
    def cancel(self, kind: str, id: int) -> tuple[bool, str]:
        """Of a ``run`` or ``job``: (whether that changed anything, what was said)."""
        ...


class Door(Protocol):
    """``call``: again until there is an answer (for what may be done twice); ``attempt``: once, None when it was lost."""

    def call(self, client: Client, do: Callable[[User], T]) -> T: ...
    def attempt(self, client: Client, do: Callable[[User], T]) -> T | None: ...


class Functions:
    """The engine's own functions, as a host app calls them."""

    def call(self, client: Client, do: Callable[[User], T]) -> T:
        return client.call(lambda db: do(_ByFunctions(db)))

    def attempt(self, client: Client, do: Callable[[User], T]) -> T | None:
        return client.attempt(lambda db: do(_ByFunctions(db)))


class _ByFunctions:
    def __init__(self, db: Db) -> None:
        self._db = db

    def put(self, item: Item) -> tuple[int, bool]:
        job = enqueue.enqueue(
            self._db,
            task_name=item["kind"],
            queue=item["queue"],
            args=item["args"],
            priority=item["priority"],
            idempotency_key=item["key"],
        )
        return int(job.id), job.existing

    def put_many(self, item: Item) -> list[int]:
        ids = enqueue.enqueue_many(
            self._db, task_name="plain", queue=item["queue"], args_list=[item["args"]] * item["size"]
        )
        return [int(id) for id in ids]

    def start(self, graph: dict[str, Any], context: dict[str, Any]) -> int:
        return submit_run(self._db, graph, context)

    def cancel(self, kind: str, id: int) -> tuple[bool, str]:
        done = (operate.cancel_run if kind == "run" else operate.cancel_job)(self._db, id, "chaos")
        return done.changed, done.message


class Lost(Exception):
    """No answer came, or one that does not say what was done."""


class Http:
    """The job API of the run's own `queue-broker-web`, which is killed and started again like everything else."""

    def __init__(self, port: int, journal: Journal, stop: threading.Event) -> None:
        self._port, self._journal, self._stop = port, journal, stop
        self._own = threading.local()

    def call(self, client: Client, do: Callable[[User], T], patience_s: float = 90.0) -> T:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._once(do)
            except Lost as error:
                if time.monotonic() > deadline:
                    raise Gone(f"no answer over HTTP for {patience_s:.0f} s: {error}") from error
                time.sleep(0.1)

    def attempt(self, client: Client, do: Callable[[User], T]) -> T | None:
        try:
            return self._once(do)
        except Lost:
            time.sleep(0.1)
            return None

    def _once(self, do: Callable[[User], T]) -> T:
        if self._stop.is_set():
            raise Gone("over")
        if getattr(self._own, "user", None) is None:
            self._own.user = _ByHttp(self._port, self._journal)
        try:
            return do(self._own.user)
        except Lost:
            self._own.user.close()
            self._own.user = None
            raise


class _ByHttp:
    """One keep-alive connection of one thread."""

    def __init__(self, port: int, journal: Journal) -> None:
        self._raw, self._journal = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S), journal

    def close(self) -> None:
        self._raw.close()

    def put(self, item: Item) -> tuple[int, bool]:
        body = {"task": item["kind"], "queue": item["queue"], "payload": item["args"], "priority": item["priority"]}
        headers = {"Idempotency-Key": item["key"]} if item["key"] else {}
        status, answer = self._ask("POST", "/jobs", body, headers, (200, 201, 422))
        if status == 422:
            raise Conflict(str(answer.get("detail")))
        return int(answer["id"]), status == 200

    def put_many(self, item: Item) -> list[int]:
        one = {**item, "kind": "plain", "key": None}
        return [self.put(one)[0] for _ in range(item["size"])]

    def start(self, graph: dict[str, Any], context: dict[str, Any]) -> int:
        return int(self._ask("POST", "/runs", {"graph": graph, "context": context}, {}, (201,))[1]["id"])

    def cancel(self, kind: str, id: int) -> tuple[bool, str]:
        status, answer = self._ask("DELETE", f"/{kind}s/{id}", None, {}, (200, 202, 409))
        return status != 409, str(answer.get("detail") or answer.get("status"))

    def _ask(
        self, method: str, path: str, body: Any, headers: dict[str, str], wanted: tuple[int, ...]
    ) -> tuple[int, dict[str, Any]]:
        """(status, answer). Raises Lost; an answer that the contract does not know here is a breach."""
        data = None if body is None else json.dumps(body).encode()
        try:
            self._raw.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = self._raw.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Lost(f"{method} {path}: {type(error).__name__}: {error}") from error
        if status == 503:
            raise Lost(f"{method} {path}: 503")
        if status not in wanted:
            self._journal.breach("http", f"{method} {path}: {status} {text[:300]!r}")
            raise Lost(f"{method} {path}: {status}")
        return status, json.loads(text)
