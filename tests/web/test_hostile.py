"""What an attacker, or an odd client, might try that is neither too much nor too slow."""

from __future__ import annotations

import json
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
import pytest
from starlette.testclient import TestClient

from engine.errors import BadInput, EngineError, StoreUnavailable
from engine.store import Db, Store
from engine.store.migrate import migrate
from engine.web.metrics import Kept
from engine.web.page.orders import PROJECTS_MOST, read_scope
from engine.web.page.views import QUEUES_MOST
from engine.web.server import bind
from engine.web.settings import WebSettings
from tests.support import eventually
from tests.web.conftest import READ, Threaded, in_process, threaded
from tests.web.fleet_rows import job, lane
from tests.web.sockets import connected, head, parsed, rest

BODY = json.dumps({"payload": {"steps": 1}}).encode()
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    """One for all tests that change nothing, with both tokens set."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'hostile_test.db'}")
    migrate(store)
    with threaded(store, WebSettings(project="", box="testbox", rate=0.0)) as server:
        yield server


@pytest.fixture
def client(server: Threaded) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_a_terminal_that_closes_ends_the_service_in_good_order(server: Threaded) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests were started with
    try:
        with server.server.capture_signals():  # of the main thread, where the test runs
            handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(set(handlers.values())) == 1
    assert callable(handlers[signal.SIGHUP])


@pytest.mark.parametrize("path", ["/jobs/", "/docs/", "/metrics/", "/page/jobs/"])
def test_no_answer_leads_to_where_the_host_header_says(client: httpx.Client, path: str) -> None:
    told = client.get(path, headers={"host": "evil.example"})
    assert told.status_code == 404
    assert "evil.example" not in str(told.headers) + told.text


@pytest.mark.parametrize(
    "fields",
    [
        ["Host: evil.example"],
        [f"Authorization: Bearer {READ}"],
        ["Authorization: Bearer wrong"],
    ],
)
def test_a_head_that_says_twice_who_asks_whom_is_refused(server: Threaded, fields: list[str]) -> None:
    """A proxy may have believed the other one."""
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/jobs", *fields, "Connection: close"))
        assert parsed(rest(sock)).status == 400


def test_a_head_that_says_not_whom_it_asks_is_refused(server: Threaded) -> None:
    with connected(server.port) as sock:
        sock.sendall(head("GET", "/healthz", "Connection: close").replace(b"Host: localhost\r\n", b""))
        assert parsed(rest(sock)).status == 400


def test_a_head_is_answered_as_a_get_without_a_body(server: Threaded, client: httpx.Client) -> None:
    """As monitors ask, and curl -I."""
    for path in ("/healthz", "/jobs", "/", "/metrics", "/static/page.css", "/jobs/none"):
        told, whole = client.head(path), client.get(path)
        assert told.status_code == whole.status_code, path
        assert told.headers["content-type"] == whole.headers["content-type"], path
        assert told.content == b"", path
    assert client.head("/events").status_code == 405
    with server.client(token=None) as client:
        assert client.head("/jobs").status_code == 401


@pytest.mark.parametrize("path", [f"/jobs/{READ}", f"/page/jobs/{READ}", f"/{READ.replace('e', '%65')}"])
def test_a_token_in_a_path_is_refused_and_not_echoed(client: httpx.Client, path: str) -> None:
    told = client.get(path)
    assert told.status_code == 400
    assert READ not in told.text


def test_nul_characters_in_an_address_of_the_page_are_refused(app_client: TestClient) -> None:
    """PostgreSQL has no text with them: that is no fault of ours to be logged with a trace."""
    for path in (
        *(f"/page/jobs?{name}=a%00b" for name in ("text", "queue", "box", "project", "sort")),
        *(f"/page/events?{name}=%00" for name in ("text", "project")),
        "/page/order?action=park&box=*&queue=*&project=%00",
    ):
        assert app_client.get(path).status_code == 422, path


def test_nul_characters_in_a_form_are_refused(app_client: TestClient) -> None:
    page = app_client.get("/page/order?action=park&box=*&queue=*&project=x").text
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found
    order = f"form_token={found[1]}&action=park&box=*&queue=*&project=x&policy=drain"
    for more in ("&reason=%00", "&project=%00", "&reason=a\0"):
        assert app_client.post("/page/order", content=order + more, headers=FORM).status_code == 422, more
    assert app_client.post("/page/order", content=order, headers=FORM, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("cut", [0, 3, 10_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_would_rather_speak_http_2_submits_a_job(server: Threaded, cut: int, chunked: bool) -> None:
    """Java's own client offers it with every first request, also one with a body."""
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(BODY)}"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
    sent = head("POST", "/jobs", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA", framing)
    with connected(server.port) as sock:
        sock.sendall(sent + body[:cut])
        if body[cut:]:
            sock.sendall(body[cut:])
        told = parsed(rest(sock))
    assert told.status == 201
    assert told.json()["payload"] == {"steps": 1}


def test_the_page_of_queues_is_bounded_and_keeps_what_is_served(app_client: TestClient, db: Db) -> None:
    with db.transaction():
        for i in range(QUEUES_MOST + 20):
            job(db, "waits", "queued", f"many{i}", "")
        lane(db, "spark", "served", "")
    page = app_client.get("/page/queues").text
    assert page.count('<th scope="row">') == QUEUES_MOST
    assert ">served</a>" in page
    assert "21 more" in page


@pytest.fixture
def looking(pg_url: str) -> Iterator[Store]:
    """The store by a login that may only read."""
    name = f"fd{secrets.token_hex(4)}_looks"
    parts = urlsplit(pg_url)
    place = parts.netloc.rpartition("@")[2]
    with psycopg.connect(pg_url, autocommit=True) as raw:
        raw.execute(f"create user {name} password 'secret'")
        raw.execute(f"grant select on all tables in schema public to {name}")
        yield Store(urlunsplit(parts._replace(netloc=f"{name}:secret@{place}")))
        raw.execute(f"drop owned by {name}")
        raw.execute(f"drop role {name}")


def test_a_login_without_rights_is_no_fault_of_ours(
    looking: Store, pg_url: str, web_settings: WebSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """What it may see is shown, the rest is refused; the log has lines, and not a trace every second."""
    with threaded(looking, web_settings) as server, server.client() as client:
        assert client.get("/jobs").status_code == 200
        told = client.post("/jobs", content=BODY)
        assert told.status_code == 403 and "its login at the database has no right" in told.json()["detail"]
        asked = client.get("/page/order?action=park&box=*&queue=*&project=x").text
        found = re.search(r'name="form_token" value="([^"]+)"', asked)
        assert found
        order = f"form_token={found[1]}&action=park&box=*&queue=*&project=x&policy=drain"
        assert client.post("/page/order", content=order, headers=FORM).status_code == 403
        eventually(lambda: "no row in services" in caplog.text, what="the log tells of the row")
        with Store(pg_url).connect("test") as owner:
            owner.run(f"revoke select on ingest_jobs from {urlsplit(looking.url).username}")
        page = client.get("/page/jobs")
        assert page.status_code == 403 and "its login at the database has no right" in page.text
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith("engine")]


def test_tables_that_are_gone_are_an_outage(pg_store: Store, web_settings: WebSettings) -> None:
    """As while a backup is played back."""
    with pg_store.connect("test") as db, in_process(pg_store, web_settings) as client:
        assert client.get("/jobs").status_code == 200
        db.run("alter table ingest_jobs rename to elsewhere")
        for path in ("/jobs", "/page/jobs", "/metrics"):
            assert client.get(path).status_code == 503, path
        db.run("alter table elsewhere rename to ingest_jobs")
        assert client.get("/jobs").status_code == 200


def test_who_waits_for_numbers_that_cannot_be_had_is_told_so_at_once() -> None:
    """A database that hangs takes its time once, not once for each of those who ask."""
    asked: list[int] = []
    made: list[int] = []
    go = threading.Event()

    def clock() -> float:
        asked.append(1)
        return float(len(asked))

    def fail() -> int:
        made.append(1)
        assert go.wait(60)
        raise StoreUnavailable("it hangs")

    def ask() -> str:
        with pytest.raises(StoreUnavailable) as told:
            kept.get(fail)
        return str(told.value)

    kept: Kept[int] = Kept(clock)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(ask) for _ in range(4)]
        try:
            eventually(lambda: made and len(asked) >= 5, what="all four have asked, and one has begun")
        finally:
            go.set()
        assert {one.result() for one in waiting} == {"it hangs"}
    assert len(made) == 1
    assert kept.get(lambda: 7) == 7  # who asks later


def test_an_order_for_too_many_projects_is_refused_not_cut() -> None:
    fields = {"action": ["park"], "box": ["*"], "queue": ["*"]}
    named = [f"p{i}" for i in range(PROJECTS_MOST)]
    assert read_scope({**fields, "project": named}, None).projects == tuple(named)
    with pytest.raises(BadInput, match="at most"):
        read_scope({**fields, "project": [*named, "one more"]}, None)


def test_a_name_that_leads_also_to_an_address_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """``localhost`` is ::1, too, in many a container that has no IPv6."""
    places = {
        name: socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM) for name in ("192.0.2.1", "127.0.0.1", "127.0.0.2")
    }
    found = [*places["192.0.2.1"], *places["127.0.0.1"], *places["127.0.0.2"]]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    bound = bind("localhost", 0)
    try:
        assert [sock.getsockname()[0] for sock in bound] == ["127.0.0.1", "127.0.0.2"]
        assert len({sock.getsockname()[1] for sock in bound}) == 1
    finally:
        for sock in bound:
            sock.close()
    found = places["192.0.2.1"]
    with pytest.raises(EngineError, match="cannot listen on localhost"):
        bind("localhost", 0)
