"""Logging in at the page: a token in a body, a signed cookie that ends, and nothing that tells a token."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from engine.store import Store
from engine.web.access import FAILURES_BURST
from engine.web.page.login import WRONG
from engine.web.sessions import COOKIE, FORM_LASTS_S, LASTS_S, SAID_LASTS_S, Sessions, tidy_name
from engine.web.settings import WebSettings
from tests.web.conftest import OPERATE, READ, in_process
from tests.web.fleet_rows import Page, seed

FORM = {"content-type": "application/x-www-form-urlencoded"}
HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def guarded(sqlite_store: Store, web_settings: WebSettings) -> Iterator[TestClient]:
    """The page with both tokens, seen by a browser that has none yet."""
    with in_process(sqlite_store, web_settings, token=OPERATE, token_read=READ) as client:
        client.headers.update(HTML)
        yield client


def log_in(client: TestClient, token: str, **more: str) -> Any:
    body = urlencode({"token": token, **more})
    return client.post("/login", content=body, headers=FORM, follow_redirects=False)


def test_a_page_leads_to_the_login_and_the_login_back(guarded: TestClient) -> None:
    asked = guarded.get("/page/jobs?status=failed", follow_redirects=False)
    assert asked.status_code == 303
    form = guarded.get(asked.headers["location"])
    fields = dict(Page(form.text).forms()[0])
    assert fields == {"next": "/page/jobs?status=failed"}
    answer = log_in(guarded, OPERATE, **fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/jobs?status=failed")
    assert guarded.get("/").status_code == 200
    assert guarded.get("/jobs", headers={"accept": "application/json"}).status_code == 200


def test_a_program_is_told_401_and_not_sent_to_a_form(guarded: TestClient) -> None:
    answer = guarded.get("/jobs", headers={"accept": "application/json"}, follow_redirects=False)
    assert answer.status_code == 401 and answer.json()["status"] == 401


def test_the_cookie_is_for_the_server_alone_and_has_no_token(
    guarded: TestClient, sqlite_store: Store, web_settings: WebSettings
) -> None:
    answer = log_in(guarded, OPERATE, name="ana")
    cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
    assert cookie["httponly"] and cookie["samesite"] == "strict" and cookie["path"] == "/" and not cookie["secure"]
    assert OPERATE not in answer.headers["set-cookie"] and int(cookie["max-age"]) == LASTS_S
    with in_process(sqlite_store, web_settings, token=OPERATE) as client:
        client.base_url = "https://localhost"  # type: ignore[assignment]
        assert SimpleCookie(log_in(client, OPERATE).headers["set-cookie"])[COOKIE]["secure"]


def test_a_wrong_token_is_one_clear_line_and_too_many_are_slowed_down(guarded: TestClient) -> None:
    answer = log_in(guarded, OPERATE[:-1])
    assert answer.status_code == 401 and WRONG in answer.text and "set-cookie" not in answer.headers
    assert OPERATE[:-1] not in answer.text
    assert log_in(guarded, "").status_code == 401
    seen = [log_in(guarded, f"wrong-{number}-0123456789").status_code for number in range(int(FAILURES_BURST) + 20)]
    assert 429 in seen
    assert log_in(guarded, OPERATE).status_code == 303  # the right one is taken all the same


def test_a_login_of_another_site_is_refused(guarded: TestClient) -> None:
    body = urlencode({"token": OPERATE})
    answer = guarded.post("/login", content=body, headers={**FORM, "origin": "http://evil.example"})
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_logging_out_forgets_the_cookie(guarded: TestClient) -> None:
    for token in (OPERATE, READ):
        log_in(guarded, token)
        assert guarded.get("/", follow_redirects=False).status_code == 200
        answer = guarded.post("/logout", headers=FORM, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert guarded.get("/", follow_redirects=False).status_code == 303


def test_a_name_given_at_the_login_stands_in_the_audit(guarded: TestClient, sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        seed(db)
        assert log_in(guarded, OPERATE, name="<b>").status_code == 403
        log_in(guarded, OPERATE, name="  Ana   Lima ")
        fields = Page(guarded.get("/page/order?action=park&box=spark&queue=cpu").text).fields(action="park")
        guarded.post("/page/order", content=urlencode([*fields, ("policy", "drain")]), headers=FORM)
        assert db.value("select requested_by from control_events order by id desc limit 1") == "web:Ana Lima"


def test_a_form_of_one_session_is_nothing_in_another(guarded: TestClient, sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        seed(db)
    log_in(guarded, OPERATE)
    fields = Page(guarded.get("/page/order?action=park&box=spark&queue=cpu").text).fields(action="park")
    guarded.cookies.clear()
    log_in(guarded, OPERATE)
    answer = guarded.post("/page/order", content=urlencode([*fields, ("policy", "drain")]), headers=FORM)
    assert answer.status_code == 403 and "load the page again" in answer.text


def test_the_reader_cookie_may_only_look(guarded: TestClient, sqlite_store: Store) -> None:
    with sqlite_store.connect("test") as db:
        seed(db)
    log_in(guarded, READ)
    assert "read only" in guarded.get("/").text
    assert guarded.post("/page/order", content="", headers=FORM).status_code == 403


# -- the cookies themselves


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_and_so_do_forms_and_words() -> None:
    clock = Clock()
    sessions = Sessions(OPERATE, READ, clock)
    cookie, form, said = sessions.open("read"), sessions.form_token("n"), sessions.say("parked")
    session = sessions.read(cookie)
    assert session is not None and (session.level, session.name) == ("read", "")
    assert (
        sessions.is_form_token(form, "n") and not sessions.is_form_token(form, "m") and sessions.said(said) == "parked"
    )
    clock.now += SAID_LASTS_S + 1
    assert sessions.said(said) == ""
    clock.now += max(LASTS_S, FORM_LASTS_S)
    assert sessions.read(cookie) is None and not sessions.is_form_token(form, "n")


def test_a_changed_token_ends_its_sessions_and_other_processes_know_them() -> None:
    cookie = Sessions(OPERATE, READ).open("operate", "ana")
    assert Sessions(OPERATE, READ).read(cookie) is not None
    assert Sessions(OPERATE, READ + "x").read(cookie) is not None
    assert Sessions(OPERATE + "x", READ).read(cookie) is None
    assert Sessions(None, None).read(cookie) is None


SESSIONS = Sessions(OPERATE, READ)
GOOD = SESSIONS.open("read", "ana")


@given(st.integers(0, len(GOOD) - 1), st.characters(codec="utf-8"))
def test_no_changed_cookie_is_taken(at: int, other: str) -> None:
    changed = GOOD[:at] + other + GOOD[at + 1 :]
    if changed != GOOD:
        assert SESSIONS.read(changed) is None


@given(st.text(max_size=500))
def test_any_cookie_can_be_read(text: str) -> None:
    assert SESSIONS.read(text) is None and SESSIONS.said(text) == "" and not SESSIONS.is_form_token(text, "")


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("ana", "ana"),
        (" Ana  B ", "Ana B"),
        ("a@b.c", "a@b.c"),
        ("<x>", ""),
        ("a" * 41, ""),
        ("a\nb\x1b", ""),
        ("", ""),
    ],
)
def test_a_name_is_letters_and_little_else(given_name: str, kept: str) -> None:
    assert tidy_name(given_name) == kept


def test_without_tokens_there_is_nothing_to_log_in_to(sqlite_store: Store, web_settings: WebSettings) -> None:
    with in_process(sqlite_store, web_settings) as client:
        answer = client.get("/login?next=//evil.example", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert log_in(client, "anything-0123456789").status_code == 401
