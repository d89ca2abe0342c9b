"""What nobody should send: it is refused in bounded time, and others are served meanwhile.

One server serves all tests here; :mod:`tests.web.test_slow` has those that take their time.
"""

from __future__ import annotations

import contextlib
import re
import resource
import select
import socket
import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest

from engine.store import Store
from engine.store.migrate import migrate
from engine.web.server import AT_ONCE
from engine.web.settings import WebSettings
from tests.support import Processes, eventually
from tests.web.conftest import READ, Threaded, start_service, threaded
from tests.web.sockets import connected, head, parsed, rest

MIB = 1024 * 1024
PLACES = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('limits') / 'limits_test.db'}")
    migrate(store)
    with threaded(store, WebSettings(project="", box="testbox", rate=0.0)) as server:
        yield server


@pytest.fixture
def client(server: Threaded) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(autouse=True)
def still_well(server: Threaded, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test sent, the server answers afterwards, and nothing came up that nobody had thought of."""
    yield
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("way", ["content-length", "chunked"])
def test_a_body_of_10_mib_is_too_large(client: httpx.Client, way: str) -> None:
    if way == "chunked":
        told = client.post("/jobs", content=(b" " * 65536 for _ in range(160)))
    else:
        told = client.post("/jobs", content=b" " * (10 * MIB))
    assert told.status_code == 413
    assert told.headers["content-type"] == "application/problem+json"
    assert "1,114,112 bytes" in told.json()["detail"]


def test_a_large_body_is_refused_before_it_is_sent(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", f"Content-Length: {10 * MIB}", "Expect: 100-continue"))
        assert parsed(rest(sock)).status == 413


def test_a_body_without_end_is_cut_off(server: Threaded) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Transfer-Encoding: chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):  # 131 MB, were it read
                sock.sendall(chunk)
            raise AssertionError("the server takes it for ever")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"payload":' + "[" * 100_000 + "]" * 100_000 + "}", '{"payload":{"a":' * 50_000],
    ids=["open", "payload", "objects"],
)
def test_json_of_100000_levels_is_refused(client: httpx.Client, text: str) -> None:
    told = client.post("/jobs", content=text, headers={"content-type": "application/json"})
    assert told.status_code in (400, 422)
    assert told.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body",
    [b'{"payload": {"a": "\xff\xfe"}}', b"\xff", b'{"payload": {"\xc3\x28": 1}}', b'{"payload": {"a": "\\ud800"}}'],
    ids=["value", "alone", "name", "half a character"],
)
def test_bad_utf8_is_refused(client: httpx.Client, body: bytes) -> None:
    told = client.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert told.status_code in (400, 422)


@pytest.mark.parametrize(
    "body",
    [b'{"payload": {"a": "\\u0000"}}', b'{"payload": {"\\u0000": 1}}', b'{"payload": {"a": "\x00"}}', b"\x00"],
    ids=["value", "name", "raw", "alone"],
)
def test_nul_characters_are_refused(client: httpx.Client, body: bytes) -> None:
    told = client.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert told.status_code in (400, 422)


@pytest.mark.parametrize("path", ["/jobs/%00", "/jobs/1%0a2", "/%7f"])
def test_control_characters_in_an_address_are_refused(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 400


def test_nul_characters_in_a_head_are_refused(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/healthz", "X-Odd: a\x00b"))
        assert parsed(rest(sock)).status == 400


@pytest.mark.parametrize(
    "fields", [["X-Long: " + "x" * 200_000], [f"X-{i}: 1" for i in range(500)]], ids=["long", "many"]
)
def test_a_head_that_is_too_large_is_refused(server: Threaded, fields: list[str]) -> None:
    with connected(server.port) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(head("GET", "/healthz", *fields))
        assert parsed(rest(sock)).status == 431


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"HELO me\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_is_refused(server: Threaded, said: bytes) -> None:
    with connected(server.port) as sock:
        sock.sendall(said)
        told = parsed(rest(sock))
    assert told.status == 400
    assert told.headers["content-type"] == "application/problem+json"


def test_requests_that_say_two_things_at_once_are_refused(server: Threaded) -> None:
    """A proxy in front might read them in the other way (request smuggling)."""
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
        assert parsed(rest(sock)).status == 400


def test_an_upgrade_is_answered_as_what_it_was(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/healthz", "Connection: Upgrade", "Upgrade: websocket"))
        assert parsed(rest(sock)).status == 200


def test_pipelined_requests_are_answered_in_order(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/healthz") * 20 + head("GET", "/nowhere", "Connection: close"))
        told = rest(sock)
    assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"200"] * 20 + [b"404"]


def test_10000_idle_connections_are_bounded(processes: Processes, sqlite_store: Store) -> None:
    """Extra ones take the places of those that have waited longest; whoever asks is answered."""
    service = start_service(processes, sqlite_store, {"FLIGHTDECK_WEB_CONNECTIONS": str(PLACES)})
    server = psutil.Process(service.process.pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 10_500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    idle: list[socket.socket] = []
    answered: list[int] = []
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.05):
            with contextlib.suppress(ConnectionError), connected(service.port) as sock:
                sock.sendall(head("GET", "/healthz", "Connection: close"))
                if said := rest(sock):
                    answered.append(parsed(said).status)

    asking = threading.Thread(target=ask)
    asking.start()
    most = 0
    try:
        for number in range(many):
            idle.append(socket.create_connection(("127.0.0.1", service.port), timeout=60))
            if number % 500 == 0:
                most = max(most, server.num_fds())
        with service.client() as client:
            assert client.get("/healthz").status_code == 200
        watched = select.poll()
        for sock in idle:
            watched.register(sock, select.POLLIN)
        eventually(lambda: len(watched.poll(0)) >= many - PLACES, what="extra connections are closed")
    finally:
        done.set()
        asking.join()
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most < PLACES + 2 * AT_ONCE + 200
    assert set(answered) == {200}
    eventually(lambda: "connections over the limit" in service.log(), what="the log says so")


def test_the_read_token_reads(server: Threaded) -> None:
    with server.client(READ) as client:
        assert client.get("/openapi.json").status_code == 200
        assert client.post("/jobs", json={}).status_code == 403
