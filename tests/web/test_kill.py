"""kill -9 of the server in the middle of posts: nothing answered is lost, whatever was not can be sent again."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable

from engine.store import Store
from engine.web.settings import WebSettings
from tests.support import Processes
from tests.web.conftest import start_service, threaded
from tests.web.sockets import Answer, head, parsed

POSTS = 200
LATE = 10  # posts whose last byte is still to come when the server is killed
MIDDLE = 60
PATIENT = {"FLIGHTDECK_WEB_RATE": "0", "FLIGHTDECK_WEB_WAIT_SECONDS": "60"}


def test_kill_9_in_the_middle_of_200_posts(processes: Processes, store: Store, web_settings: WebSettings) -> None:
    """Every 201 stands in the database; every key that got no answer gives exactly one job when it is sent again."""
    service = start_service(processes, store, PATIENT)
    first = post_all(service.port, MIDDLE, service.process.kill)
    assert service.process.wait(30) == -9
    assert MIDDLE <= len(first) <= POSTS - LATE
    assert {told.status for told in first.values()} == {201}
    before = jobs(store)
    assert ids(first).items() <= before.items()

    with threaded(store, web_settings, wait_seconds=60.0) as again:
        second = post_all(again.port)
    assert len(second) == POSTS
    assert {told.status for told in second.values()} == {200, 201}
    assert {second[key].status for key in before} == {200}
    assert before.items() <= ids(second).items()
    assert jobs(store) == ids(second)


def jobs(store: Store) -> dict[str, str]:
    """key -> id of all jobs; no key stands twice."""
    with store.connect("test") as db:
        rows = db.all("select id, idempotency_key from ingest_jobs")
    assert len({row["idempotency_key"] for row in rows}) == len(rows)
    return {row["idempotency_key"]: str(row["id"]) for row in rows}


def ids(answers: dict[str, Answer]) -> dict[str, str]:
    return {key: told.json()["id"] for key, told in answers.items()}


def post_all(port: int, middle: int = 0, kill: Callable[[], None] = lambda: None) -> dict[str, Answer]:
    """Post 200 jobs at once, each on its own connection and under its own key; key -> what was answered.

    ``kill`` is called after so many (``middle``) answers, with all the others underway.
    """
    answered: dict[str, Answer] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for number in range(POSTS):
            key = f"key-{number}"
            body = json.dumps({"payload": {"steps": number + 1}}).encode()
            ask = head("POST", "/jobs", f"Content-Length: {len(body)}", f"Idempotency-Key: {key}", "Connection: close")
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            late = middle and number >= POSTS - LATE
            sock.sendall(ask + (body[:-1] if late else body))
            waiting.register(sock, selectors.EVENT_READ, (key, bytearray()))
        while waiting.get_map():
            ready = waiting.select(60)
            assert ready, "no answer"
            for chosen, _ in ready:
                key, said = chosen.data
                part = b""
                with contextlib.suppress(ConnectionError):
                    part = chosen.fileobj.recv(65536)  # type: ignore[union-attr]
                said += part
                if part:
                    continue
                waiting.unregister(chosen.fileobj)
                if told := whole(bytes(said)):
                    answered[key] = told
                    if len(answered) == middle:
                        kill()
    return answered


def whole(said: bytes) -> Answer | None:
    """The answer, if all of it came."""
    if b"\r\n\r\n" not in said:
        return None
    told = parsed(said)
    return told if len(told.body) == int(told.headers["content-length"]) else None
