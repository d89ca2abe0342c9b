"""The server as a process: its start and end, its row, and a database that goes and comes."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from starlette.types import Receive, Scope, Send

from engine.store import Store
from engine.store.migrate import migrate
from engine.web.settings import WebSettings
from tests.support import eventually
from tests.web.conftest import OPERATE, Service, threaded
from tests.web.sockets import answer, connected, head, parsed, rest

ENDED = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where datname = %s"  # waits until they are
BODY = json.dumps({"payload": {"steps": 1}}).encode()


def test_a_server_starts_answers_and_ends_in_good_order(service: Service) -> None:
    """At SIGTERM what runs is answered and new connections are refused; exit code 0. The row in `services` comes and
    goes with the process; the access log has a line for each request, and no tokens."""
    with (
        service.store.connect("test") as db,
        connected(service.port) as busy,
        connected(service.port) as beginning,
        connected(service.port) as idle,
    ):
        count = "select count(*) as n from services where kind = 'web'"
        eventually(lambda: db.value(count) == 1, what="the service has its row")
        busy.sendall(head("POST", "/jobs", f"Content-Length: {len(BODY)}", "X-Request-ID: mine") + BODY[:5])
        whole = head("GET", "/jobs/1")
        beginning.sendall(whole[:20])
        idle.sendall(head("GET", "/healthz"))
        assert answer(idle).status == 200
        service.process.send_signal(signal.SIGTERM)
        eventually(lambda: _is_refused(service.port), what="new connections are refused")
        assert rest(idle) == b""
        busy.sendall(BODY[5:])
        told = answer(busy)
        assert (told.status, told.headers["connection"]) == (201, "close")
        beginning.sendall(whole[20:])
        assert answer(beginning).status == 200
        assert service.process.wait(30) == 0
        assert db.value(count) == 0
        assert db.value("select count(*) as n from ingest_jobs") == 1
    lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    assert [(line["method"], line["path"], line["status"], line["who"]) for line in lines] == [
        ("GET", "/healthz", 200, ""),
        ("POST", "/jobs", 201, "operate"),
        ("GET", "/jobs/1", 200, "operate"),
    ]
    assert lines[1]["id"] == "mine"
    assert OPERATE not in service.log()


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_what_takes_too_long_at_the_end_is_given_up(sqlite_store: Store, web_settings: WebSettings) -> None:
    with threaded(sqlite_store, web_settings, grace=1.0) as server, connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Content-Length: 1000") + b" ")
        server.end()
        rest(sock)


def test_when_all_turns_are_taken_others_are_told_to_come_again(pg_store: Store, web_settings: WebSettings) -> None:
    """Back-pressure: 503 with Retry-After; what waits for the database is done in the end."""
    done: list[int] = []

    def post() -> None:
        """Until it is done: a statement waits for a lock for five seconds at most."""
        with server.client() as client:
            while (status := client.post("/jobs", content=BODY).status_code) == 503:
                pass
            done.append(status)

    with (
        pg_store.connect("test") as db,
        pg_store.connect("watch") as watch,
        threaded(pg_store, web_settings, pool=2, wait_seconds=0.2) as server,
        server.client() as client,
    ):
        assert client.get("/jobs").status_code == 200
        held = [threading.Thread(target=post) for _ in range(2)]
        with db.transaction():
            db.run("lock table ingest_jobs in exclusive mode")  # readers pass, writers wait
            for thread in held:
                thread.start()
            waiting = (
                "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock' "
                "and datname = current_database()"
            )
            eventually(lambda: watch.value(waiting) == 2, what="two posts wait for the database")
            told = eventually(lambda: _refused(client.get("/jobs")), what="a third request is told to wait")
            assert int(told.headers["retry-after"]) >= 1
            assert told.headers["content-type"] == "application/problem+json"
            assert client.get("/healthz").status_code == 200  # the database answers
        for thread in held:
            thread.join()
        assert done == [201, 201]
        assert client.get("/jobs").json()["total"] == 2


def _refused(told: httpx.Response) -> httpx.Response | None:
    return told if told.status_code == 503 else None


def test_a_database_that_goes_and_comes_postgresql(pg_store: Store, server_url: str, web_settings: WebSettings) -> None:
    name = urlsplit(pg_store.url).path.lstrip("/")
    with (
        threaded(pg_store, web_settings) as server,
        server.client() as client,
        psycopg.connect(server_url, autocommit=True) as admin,
    ):
        assert client.post("/jobs", content=BODY).status_code == 201
        admin.execute(f'alter database "{name}" allow_connections false')
        admin.execute(ENDED, [name])
        _refuses(client)
        admin.execute(f'alter database "{name}" allow_connections true')
        _comes_back(client)
        # Sessions that end while nobody uses them cost nobody a request.
        for _ in range(3):
            admin.execute(ENDED, [name])
            assert client.get("/jobs").status_code == 200


def test_a_database_that_goes_and_comes_sqlite(sqlite_store: Store, web_settings: WebSettings) -> None:
    assert sqlite_store.path is not None
    elsewhere = Path(f"{sqlite_store.path}.moved")
    with threaded(sqlite_store, web_settings) as server, server.client() as client:
        assert client.post("/jobs", content=BODY).status_code == 201
        sqlite_store.path.rename(elsewhere)
        _refuses(client)
        elsewhere.rename(sqlite_store.path)
        _comes_back(client)


def _refuses(client: httpx.Client) -> None:
    eventually(lambda: client.get("/healthz").status_code == 503, what="/healthz tells")
    for told in (client.get("/jobs"), client.post("/jobs", content=BODY), client.get("/healthz")):
        assert told.status_code == 503
        assert int(told.headers["retry-after"]) >= 1
        assert told.headers["content-type"] == "application/problem+json"
        assert "/" not in told.json()["detail"]  # where the database is, is nobody's business


def _comes_back(client: httpx.Client) -> None:
    eventually(lambda: client.get("/healthz").status_code == 200, what="/healthz is well")
    assert client.get("/jobs").json()["total"] == 1
    assert client.post("/jobs", content=BODY).status_code == 201


def test_a_server_that_starts_before_its_database(pg_empty_url: str, web_settings: WebSettings) -> None:
    """It refuses requests until somebody has made the schema."""
    store = Store(pg_empty_url)
    with threaded(store, web_settings) as server, server.client() as client:
        assert client.get("/healthz").status_code == 503
        migrate(store)
        eventually(lambda: client.get("/healthz").status_code == 200, what="the schema is seen")
        assert client.get("/jobs").json()["total"] == 0


@pytest.mark.parametrize("midway", [False, True])
def test_a_bug_shows_no_trace_to_clients(
    sqlite_store: Store, web_settings: WebSettings, caplog: pytest.LogCaptureFixture, midway: bool
) -> None:
    """The log has it, under the id that the client was told."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if midway:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise RuntimeError("the secret plan")

    with threaded(sqlite_store, web_settings) as server:
        server.app.mount("/broken", broken)
        with connected(server.port) as sock:
            sock.sendall(head("GET", "/broken/x", "X-Request-ID: that-one", "Connection: close"))
            said = rest(sock)
    told = parsed(said)
    assert b"secret" not in said
    assert b"Traceback" not in said
    if midway:
        assert not said.endswith(b"0\r\n\r\n")  # it is seen to be cut off
    else:
        assert told.status == 500
        assert told.json()["request_id"] == told.headers["x-request-id"] == "that-one"
    assert "the secret plan" in caplog.text
    assert "that-one" in caplog.text
