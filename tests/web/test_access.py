"""Who may do what: tokens, this machine without any, pages of others, and how often."""

from __future__ import annotations

import hmac
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine import config
from engine.commands import broker_web
from engine.commands.options import run_app
from engine.config import ConfigError
from engine.store import Store
from engine.store.migrate import migrate
from engine.web import access
from engine.web.access import Access, Buckets, Gatekeeper
from engine.web.settings import WebSettings, check_bind, is_loopback
from tests.web.conftest import OPERATE, READ, in_process

OPERATE_HEADER = {"authorization": f"Bearer {OPERATE}"}
PLAIN = WebSettings(project="", box="testbox", rate=0.0)
READ_HEADER = {"authorization": f"Bearer {READ}"}


@pytest.fixture(scope="module")
def module_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('access') / 'access_test.db'}")
    migrate(store)
    return store


@pytest.fixture(scope="module")
def guarded(module_store: Store) -> Iterator[TestClient]:
    """The application with both tokens set."""
    with in_process(module_store, PLAIN, token=OPERATE, token_read=READ) as client:
        yield client


@pytest.fixture(scope="module")
def local(module_store: Store) -> Iterator[TestClient]:
    """The application without a token."""
    with in_process(module_store, PLAIN) as client:
        yield client


def test_every_route_but_the_open_ones_needs_a_token(guarded: TestClient) -> None:
    """Also a route that somebody adds tomorrow."""
    seen = set()
    for path, method in routes(guarded.app.routes):  # type: ignore[attr-defined]
        if path in access.OPEN_PATHS or path.startswith("/static"):
            continue
        told = guarded.request(method, path.replace("{", "").replace("}", ""))
        assert told.status_code == 401, (method, path)
        seen.add((method, path))
    assert {("POST", "/jobs"), ("GET", "/jobs/{job_id}"), ("GET", "/"), ("GET", "/openapi.json")} <= seen
    assert guarded.get("/healthz").status_code == 200


def routes(found: Any) -> Iterator[tuple[str, str]]:
    """(path, method) of every route, those of included routers too."""
    for route in found:
        if hasattr(route, "original_router"):
            yield from routes(route.original_router.routes)
        else:
            for method in getattr(route, "methods", None) or {"GET"}:
                yield route.path, method


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Basic {OPERATE}", f"Bearer {OPERATE}x", f"Bearer {OPERATE[:-1]}", "Bearer \xff"],
)
def test_a_wrong_token_is_refused_and_not_echoed(guarded: TestClient, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    told = guarded.get("/jobs", headers=headers)  # type: ignore[arg-type]
    assert told.status_code == 401
    assert told.headers["www-authenticate"].startswith("Bearer")
    assert told.headers["content-type"] == "application/problem+json"
    assert OPERATE[:-1] not in told.text
    wrong = authorization is not None
    assert told.json()["detail"].startswith("not a token of this service" if wrong else "a token is needed")


def test_the_read_token_looks_and_changes_nothing(guarded: TestClient) -> None:
    assert guarded.get("/jobs", headers=READ_HEADER).status_code == 200
    assert guarded.get("/jobs", headers=OPERATE_HEADER).status_code == 200
    for method, path in (("POST", "/jobs"), ("DELETE", "/jobs/1"), ("POST", "/runs"), ("PATCH", "/jobs/1")):
        told = guarded.request(method, path, headers=READ_HEADER, json={})
        assert told.status_code == 403, (method, path)
        assert "operate token" in told.json()["detail"]


def test_tokens_are_compared_in_constant_time_with_every_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(a: Any, b: Any) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    keeper = Gatekeeper(WebSettings("", "box", token=OPERATE, token_read=READ))
    monkeypatch.setattr(access.hmac, "compare_digest", spy)  # type: ignore[attr-defined]
    for offered in (OPERATE, READ, "", "x" * 10_000, OPERATE[:-1] + "é"):
        compared.clear()
        keeper.of_token(offered)
        assert compared == [(32, 32), (32, 32)]
    assert keeper.of_token(OPERATE) == Access("operate", "operate")
    assert keeper.of_token(READ) == Access("read", "read")


def test_a_token_in_the_query_string_is_refused_and_logged_once(
    module_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [f"{path}?token={OPERATE}" for path in ("/jobs", "/healthz", "/docs", "/static/page.css", "/login")]
    addresses += [f"/jobs?{name}={OPERATE}" for name in ("access_token", "Token", "api_key")]
    with caplog.at_level(logging.INFO), in_process(module_store, PLAIN, token=OPERATE, token_read=READ) as client:
        for address in addresses:
            told = client.get(address, headers=OPERATE_HEADER)
            assert told.status_code == 400
            assert OPERATE not in told.text
            assert OPERATE not in str(told.headers)
    logged = ours(caplog)
    assert OPERATE not in str(logged)
    assert sum("a token in the address" in text for text in logged) == 1


@pytest.mark.parametrize("query", [f"x={READ}", f"q=a{READ}b", READ, f"x={READ.replace('-', '%2d')}", f"a=1&x={READ};"])
def test_a_token_anywhere_in_the_query_string_is_refused(guarded: TestClient, query: str) -> None:
    assert guarded.get(f"/jobs?{query}", headers=OPERATE_HEADER).status_code == 400


def test_a_token_in_a_path_or_an_id_reaches_no_log_and_no_answer(
    guarded: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        told = guarded.get(f"/nowhere/{OPERATE}", headers={**OPERATE_HEADER, "x-request-id": READ})
    assert told.status_code == 400
    logged = ours(caplog)
    assert OPERATE not in told.text + str(logged)
    assert READ not in str(told.headers) + told.text + str(logged)
    assert "/nowhere/***" in logged[-1]


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the service has logged; the client in this process logs too."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("engine")]


def test_wrong_tokens_are_slowed_down_right_ones_are_not(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = guarded.app.state.keeper  # type: ignore[attr-defined]
    monkeypatch.setattr(keeper, "_failures", Buckets(rate=1.0, burst=3.0, clock=lambda: 0.0))
    answers = [guarded.get("/jobs", headers={"authorization": "Bearer wrong"}).status_code for _ in range(5)]
    assert answers == [401, 401, 401, 429, 429]
    assert guarded.get("/jobs", headers=READ_HEADER).status_code == 200


def test_too_many_requests_of_one_token_are_told_to_wait(module_store: Store) -> None:
    settings = replace(PLAIN, token=OPERATE, token_read=READ, rate=0.001)
    with in_process(module_store, settings) as client:
        assert client.get("/nowhere", headers=OPERATE_HEADER).status_code == 404
        told = client.get("/nowhere", headers=OPERATE_HEADER)
        assert told.status_code == 429
        assert int(told.headers["retry-after"]) > 100
        assert client.get("/nowhere", headers=READ_HEADER).status_code == 404  # another token, another budget


def test_a_bucket_fills_with_time() -> None:
    now = 100.0
    bucket = Buckets(rate=2.0, burst=3.0, clock=lambda: now)
    assert [bucket.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take("b") == 0.0
    now += 0.5
    assert [bucket.take("a"), bucket.take("a")] == [0.0, 0.5]
    now -= 50.0  # a clock that runs back gives nothing and takes nothing
    assert bucket.take("a") == 0.5
    assert Buckets(rate=0.0, burst=1.0).take("x") == 0.0


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8787", "127.0.0.1:8787", "127.3.2.1", "[::1]:8787", "LOCALHOST"]
)
def test_without_a_token_this_machine_is_served(local: TestClient, host: str) -> None:
    assert local.get("/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "10.0.0.1", "", "localhost.evil.example", "127.0.0.1.x"]
)
def test_without_a_token_other_names_are_refused(local: TestClient, host: str) -> None:
    """A page of somebody else's whose name was made to lead here (DNS rebinding)."""
    assert local.get("/jobs", headers={"host": host}).status_code == 403


def test_without_a_token_a_proxy_is_refused(local: TestClient) -> None:
    assert local.get("/jobs", headers={"x-forwarded-for": "10.0.0.1"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(local: TestClient, headers: dict[str, str]) -> None:
    before = local.get("/jobs").json()["total"]
    assert local.post("/jobs", json={"payload": {}}, headers=headers).status_code == 403
    assert local.get("/jobs").json()["total"] == before
    assert local.post("/jobs", json={"payload": {}}, headers={"origin": "http://localhost"}).status_code == 201


def test_every_answer_has_an_id_and_safe_headers(guarded: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "engine.web.access"):
        for path, status in (("/healthz", 200), ("/jobs", 401), ("/healthz?token=x", 400), ("/%00", 400)):
            told = guarded.get(path, headers={"x-request-id": "mine-1"})
            assert told.status_code == status
            assert told.headers["x-request-id"] == "mine-1"
            assert "default-src 'none'" in told.headers["content-security-policy"]
            assert "unsafe" not in told.headers["content-security-policy"]
            assert told.headers["x-content-type-options"] == "nosniff"
            if status != 200:
                assert told.json()["request_id"] == "mine-1"
    given = guarded.get("/healthz", headers={"x-request-id": "no good: <script>"}).headers["x-request-id"]
    assert given.isalnum()
    lines = [json.loads(text) for text in ours(caplog) if text.startswith("{")]
    assert [line["status"] for line in lines[:4]] == [200, 401, 400, 400]
    assert set(lines[0]) == {"at", "id", "method", "path", "status", "ms", "bytes", "who"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "", "no.such.name.invalid"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="FLIGHTDECK_WEB_TOKEN"):
        check_bind(host, WebSettings("", "box", token_read=READ))
    check_bind(host, WebSettings("", "box", token=OPERATE))


def test_loopback_needs_none() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host)
        check_bind(host, WebSettings("", "box"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"web_token": "short"}, "16 characters"),
        ({"web_token_read": "x" * 15}, "16 characters"),
        ({"web_token": "with a space in it 123"}, "visible ASCII"),
        ({"web_token": OPERATE, "web_token_read": OPERATE}, "must differ"),
        ({"web_pool": 0}, "WEB_POOL"),
        ({"web_connections": -1}, "WEB_CONNECTIONS"),
        ({"payload_limit": -1}, "PAYLOAD_LIMIT"),
        ({"web_head_seconds": 0}, "WEB_HEAD_SECONDS"),
    ],
)
def test_settings_that_make_no_sense_are_refused_without_the_token(values: dict[str, Any], said: str) -> None:
    config.configure(**values)
    with pytest.raises(ConfigError, match=said) as refused:
        WebSettings.from_config()
    for value in values.values():
        if isinstance(value, str):
            assert value not in str(refused.value)
    assert OPERATE not in repr(WebSettings("", "box", token=OPERATE))


@pytest.mark.parametrize(
    ("args", "token", "code", "said"),
    [
        (["--host", "0.0.0.0"], "", 2, "set FLIGHTDECK_WEB_TOKEN"),
        ([], "short", 2, "16 characters"),
        (["--port", "99999"], OPERATE, 2, "--port"),
        (["--host", "192.0.2.1"], OPERATE, 1, "cannot listen on 192.0.2.1"),
    ],
)
def test_a_refused_start_says_why_in_one_line(
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: list[str],
    token: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("FLIGHTDECK_WEB_TOKEN", token)
    with pytest.raises(SystemExit) as ended:
        run_app(broker_web.app, "queue-broker-web", ["--db", sqlite_url, *args])
    assert ended.value.code == code
    told = capfd.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert "short" not in told


def test_without_the_extra_one_line_says_how_to_install(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "engine.web.app")
    with pytest.raises(SystemExit) as ended:
        run_app(broker_web.app, "queue-broker-web", ["--db", sqlite_url])
    assert ended.value.code == 2
    told = capfd.readouterr().err
    assert "pip install 'flightdeck[web]'" in told
    assert told.count("\n") == 1
