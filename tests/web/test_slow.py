"""Clients that take their time: cut off in bounded time, while others are served.

One server with short deadlines serves all tests here.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import httpx
import pytest

from engine.store import Store
from engine.store.migrate import migrate
from engine.web.settings import WebSettings
from tests.support import eventually
from tests.web.conftest import Threaded, threaded
from tests.web.sockets import answer, connected, head, parsed, rest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('slow') / 'slow_test.db'}")
    migrate(store)
    settings = WebSettings(project="", box="testbox", head_seconds=1.5, body_seconds=1.5)
    with threaded(store, settings) as server:
        yield server


@pytest.fixture(autouse=True)
def still_well(server: Threaded, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test sent, the server answers afterwards, and nothing came up that nobody had thought of."""
    yield

    def answers() -> bool:
        try:
            with server.client() as client:
                return client.get("/healthz").status_code == 200
        except httpx.TransportError:  # this test itself was too slow for the deadlines
            return False

    eventually(answers, what="the server answers")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_slow_loris_a_head_that_dribbles_is_cut_off(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        told = dribble(sock, b"X-Slow: 1\r\n")
    assert parsed(told).status == 408


def test_slow_loris_empty_lines_are_no_request(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/healthz"))
        assert answer(sock).status == 200
        dribble(sock, b"\r\n")


def test_a_connection_that_says_nothing_is_closed(server: Threaded) -> None:
    with connected(server.port) as sock:
        assert rest(sock) == b""


def test_slow_loris_a_body_that_dribbles_is_cut_off(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Content-Length: 100000"))
        told = parsed(dribble(sock, b" "))
    assert told.status == 408
    assert told.headers["connection"] == "close"
    assert told.json()["request_id"]


def test_slow_loris_a_body_of_chunks_that_dribbles_is_cut_off(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Transfer-Encoding: chunked"))
        assert parsed(dribble(sock, b"1\r\n \r\n")).status == 408


def test_slow_loris_without_a_token_waits_for_no_body(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("POST", "/jobs", "Content-Length: 100000", token=None))
        assert answer(sock).status == 401
        dribble(sock, b" ")  # until the connection is dropped


def test_a_client_that_does_not_read_its_answers_is_dropped(server: Threaded) -> None:
    sock = socket.socket()
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", server.port))
        ask = head("GET", "/openapi.json")

        def pour() -> bool:
            try:
                sock.send(ask * 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return bool(select.select([], [], [sock], 0)[2])
            except ConnectionError:
                return True
            return False

        eventually(pour, what="the connection is dropped")


def dribble(sock: socket.socket, piece: bytes) -> bytes:
    """Send ``piece`` again and again, slowly, until the server has hung up; what it said."""
    said = b""
    sock.settimeout(0.05)
    for _ in range(2000):
        try:
            sock.sendall(piece)
            part = sock.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return said
        if not part:
            return said
        said += part
    raise AssertionError("the server takes it for ever")
