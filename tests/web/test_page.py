"""The operator's page, in this process, on both stores: what it shows, what its forms do, what they refuse."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlencode, urlsplit

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from engine.errors import BadInput
from engine.queue import controls
from engine.store import Db, Store
from engine.web.page import orders, render, views
from engine.web.page.jobs import after_of
from engine.web.page.posted import local_path
from engine.web.settings import WebSettings
from tests.web.conftest import OPERATE, READ, in_process
from tests.web.fleet_rows import Page, Seeded, event, job, lane, seed

PAGES = ("/", "/page/jobs", "/page/queues", "/page/workers", "/page/throttling", "/page/events", "/docs")
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def seeded(db: Db) -> Seeded:
    return seed(db)


@pytest.fixture
def quick(sqlite_store: Store, web_settings: WebSettings) -> Iterator[TestClient]:
    """The page on SQLite alone: for what has nothing to do with the store."""
    with in_process(sqlite_store, web_settings) as client:
        yield client


@pytest.fixture
def rows(sqlite_store: Store) -> Iterator[Db]:
    """The database of ``quick``, with a fleet in it."""
    with sqlite_store.connect("test") as db:
        seed(db)
        yield db


@pytest.fixture
def reader(sqlite_store: Store, web_settings: WebSettings) -> Iterator[TestClient]:
    """The page with both tokens set, seen with the one that may only look."""
    with in_process(sqlite_store, web_settings, token=OPERATE, token_read=READ) as client:
        client.headers["authorization"] = f"Bearer {READ}"
        yield client


def page(client: TestClient, path: str, status: int = 200) -> Page:
    answer = client.get(path, headers={"accept": "text/html"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return Page(answer.text)


def post(client: TestClient, path: str, fields: list[tuple[str, str]], **headers: str) -> str:
    """Post a form as a browser would; what the next page says."""
    answer = client.post(
        path, content=urlencode(fields), headers={"content-type": FORM, **headers}, follow_redirects=False
    )
    assert answer.status_code == 303, answer.text
    return page(client, answer.headers["location"]).text


def ask(client: TestClient, **of: str) -> Page:
    return page(client, f"/page/order?{urlencode(of)}")


# -- what it shows


def test_the_fleet_has_boxes_readings_lanes_and_what_runs(app_client: TestClient, seeded: Seeded) -> None:
    text = page(app_client, "/").text
    for shown in ("spark", "the loud one", "91 HOT", "448 / 450", "2.50", "20.0 / 24.0", "24 cores, load 3.2"):
        assert shown in text, shown
    for shown in ("render", "sdxl", "PARKED", "NO LEADER", "drawing", "T heat 90 s", "P power cap 540 s"):
        assert shown in text, shown
    assert "." * 20 not in text and "P" * 24 + "TTT" in text  # the strip, a letter a minute


def test_the_fleet_says_what_no_lane_serves_and_what_a_missing_leader_means(quick: TestClient, rows: Db) -> None:
    job(rows, "lonely", "queued", "default", "")
    job(rows, "alone", "queued", "default", "render")
    job(rows, "alone_too", "queued", "default", "render")
    text = page(quick, "/").text
    assert "1 job waits in default, no lane serves it: Queues" in text
    assert "2 jobs wait in default, project render, no lane serves it: Queues" in text
    assert "in training, no lane" not in text  # its lane is parked, and there
    assert "NO LEADER jobs run, but graphs do not move on and lost work is not brought back" in text
    assert "no project 0 running, 2 queued" in " ".join(text.split())


def test_every_page_draws_an_empty_database(quick: TestClient) -> None:
    for path in PAGES:
        assert page(quick, path).all("main"), path
        assert quick.head(path).status_code == 200, path
    assert "No box has reported yet" in page(quick, "/").text


def test_a_job_has_input_attempts_exit_code_in_words_and_log(app_client: TestClient, seeded: Seeded) -> None:
    text = page(app_client, f"/page/jobs/{seeded.failed}").text
    for shown in (
        "broke",
        "failed",
        '"steps": 3',
        "78 gpu health: the GPU did nothing",
        "broke said so",
        "no such dataset",
    ):
        assert shown in text, shown


def test_jobs_are_narrowed_by_status_project_and_words_and_paged(quick: TestClient, rows: Db) -> None:
    assert "drawing" in page(quick, "/page/jobs?status=running&project=render").text
    assert "drawing" not in page(quick, "/page/jobs?status=running&project=").text
    assert "broke" in page(quick, "/page/jobs?status=failed&text=dataset").text
    for number in range(120):
        job(rows, f"many_{number}", "completed", "training", "bulk")
    first = page(quick, "/page/jobs?status=completed&project=bulk&text=many")
    older = str(first.all("a", rel="next")[0]["href"])
    second = page(quick, older).text
    assert "many_119" in first.text and "many_20" in first.text and "many_19" not in first.text.replace("many_119", "")
    assert "many_19" in second and "many_0" in second and "many_20" not in second


def test_what_is_not_there_is_a_page(quick: TestClient) -> None:
    for path in ("/page/jobs/99999", "/page/nothing", "/page/jobs/1/explode"):
        answer = quick.get(path)
        assert answer.status_code == 404 and "To the fleet" in answer.text, path
    assert page(quick, "/page/jobs/none", 422).all("main")
    assert page(quick, "/page/jobs?status=odd", 422).all("main")
    assert page(quick, "/page/jobs?after=node:x", 422).all("main")


@pytest.mark.parametrize("text", ["node:-1", "pg:1", "node:" + "9" * 20, "node:1;drop", "node"])
def test_where_a_page_begins_is_checked(text: str) -> None:
    with pytest.raises(BadInput):
        after_of(text)


# -- names are data


ODD = st.text(
    st.one_of(
        st.sampled_from("<>\"'&/ =\u202e\u2066\u200b\x1b\x07\n\r\t\x85`${}%#;:"),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"),
    ),
    min_size=1,
    max_size=40,
)
TAGS = {
    "html", "head", "meta", "title", "link", "noscript", "script", "body", "a", "header", "nav", "b", "div", "span", "form",
    "button", "p", "main", "h1", "h2", "ul", "li", "section", "table", "thead", "tbody", "tr", "th", "td", "input", "label",
    "select", "option", "code", "pre", "dl", "dt", "dd", "fieldset", "legend",
}  # fmt: skip


@given(name=ODD)
@example(name="<script>alert(1)</script>")
@example(name='"><img src=x onerror=alert(1)>')
@example(name="' autofocus onfocus='alert(1)")
@example(name="\u202egpj.exe\u2066\x1b[31m")
@example(name="{{ 7*7 }}{% raw %}")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_hostile_names_are_text_and_nothing_else(quick: TestClient, sqlite_store: Store, name: str) -> None:
    with sqlite_store.connect("test") as db:
        for table in ("boxes", "flight_recorder", "flight_recorder_gpu", "worker_heartbeats", "ingest_jobs", "job_events", "job_logs", "worker_controls", "services"):  # fmt: skip
            db.run(f"delete from {table}")
        lane(db, name, name, name, busy=1, model=name)
        db.run("update worker_heartbeats set last_exit_reason = {name}", name=name)
        number = job(db, name, "running", name, name, box=name)
        db.run("update ingest_jobs set progress_text = {name}, error = {name}", name=name)
        event(db, number, name, name, name, name)
        db.run(
            "insert into worker_controls (box, queue, project, desired, reason, requested_by) "
            "values ({name}, {name}, {name}, 'off', {name}, {name})",
            name=name,
        )
    if hasattr(quick.app.state, "looks"):  # type: ignore[attr-defined]
        quick.app.state.looks.forget()  # type: ignore[attr-defined]
    order = urlencode({"action": "park", "box": "*", "queue": "*"})
    for path in ("/", "/page/jobs", f"/page/jobs/{number}", f"/page/jobs/{number}/cancel", "/page/queues", "/page/workers", "/page/events", f"/page/order?{order}"):  # fmt: skip
        answer = quick.get(path)
        assert answer.status_code == 200, answer.text
        found = Page(answer.text)
        assert {tag for tag, _ in found.tags} <= TAGS
        for _, attributes in found.tags:
            assert not any(key.startswith("on") or key == "style" for key in attributes)
            link = str(attributes.get("href") or attributes.get("action") or attributes.get("src") or "/")
            assert link.startswith(("/", "#")) and not link.startswith("//")
        shown = found.text.replace("\n", "")
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")]


def test_no_text_does_more_than_be_read() -> None:
    shown = (
        render.environment().from_string("{{ a }}|{{ b }}|{{ c }}").render(a="\u202egpj\x1b[31m", b="a\n\x07b", c=None)
    )
    assert shown == "?gpj?[31m|a\n?b|"


def test_an_order_names_an_odd_name_exactly(quick: TestClient, rows: Db) -> None:
    odd = "zero\u200bwidth \u202e<b>"
    lane(rows, odd, odd, odd)
    for action in ("park", "resume"):
        form = ask(quick, action=action, box=odd, queue=odd).fields(action=action)
        post(quick, "/page/order", [*form, ("policy", "drain")])
        wanted = {"box": odd, "queue": odd, "project": odd, "desired": "off" if action == "park" else "on"}
        assert rows.one("select box, queue, project, desired from worker_controls where box <> 'kite'") == wanted
        quick.app.state.looks.forget()  # type: ignore[attr-defined]


# -- park and resume


def test_parking_asks_first_and_names_lanes_and_jobs(app_client: TestClient, db: Db, seeded: Seeded) -> None:
    asked = ask(app_client, action="park", box="spark", queue="frames", project="render")
    assert "Park frames on spark, project render?" in asked.text
    assert "1 job runs there:" in asked.text and "drawing" in asked.text
    assert "drain: it ends, nothing new begins" in asked.text
    assert "hard: it is killed and queued again in front" in asked.text
    assert db.value("select count(*) from worker_controls where box = 'spark'") == 0
    back = asked.all("a", **{"class": "do"})[0]
    assert "autofocus" in back and back["href"] == "/"


def test_parking_a_lane_leaves_its_order_and_who_gave_it(app_client: TestClient, db: Db, seeded: Seeded) -> None:
    form = ask(app_client, action="park", box="spark", queue="frames", project="render").fields(action="park")
    said = post(
        app_client,
        "/page/order",
        [*form, ("policy", "hard"), ("reason", "new driver"), ("for", "1d"), ("for_text", "2h")],
    )
    assert "frames on spark (project render) ordered off (hard)" in said
    order = controls.order_for(db, "spark", "frames", "render")
    assert (order.desired, order.policy, order.reason, order.requested_by) == (
        "off",
        "hard",
        "new driver",
        "web:loopback",
    )
    assert order.until is not None and 7100 < (order.until - db.now()).total_seconds() < 7300
    assert controls.order_for(db, "spark", "frames", "speech").desired == "on"
    row = db.one("select action, requested_by, policy from control_events order by id desc limit 1")
    assert row == {"action": "park", "requested_by": "web:loopback", "policy": "hard"}
    text = page(app_client, "/")
    assert "parking..." in text.text and "ordered off" not in text.text  # said once; not parked before it says so
    resume = text.fields(action="resume", box="spark", project="render")
    assert "ordered on" in post(app_client, "/page/order", resume)
    assert controls.order_for(db, "spark", "frames", "render").desired == "on"


def test_a_resume_says_whose_orders_it_takes_back(app_client: TestClient, db: Db, seeded: Seeded) -> None:
    until = db.now().replace(microsecond=0) + timedelta(hours=2)
    controls.set_order(db, "spark", "frames", "render", desired="off", reason="lens", until=until, requested_by="ana")
    fleet = page(app_client, "/").text
    assert "off by ops: fan swap" in fleet and "off by ana: lens" in fleet
    asked = ask(app_client, action="resume", box="*", queue="*").text
    assert "These 2 orders are taken back:" in asked
    assert "frames on spark, project render: off (hard) by ana, ordered 20" in asked
    assert f"until {until:%Y-%m-%d %H:%M:%S} UTC: lens" in asked
    assert "training on kite: off (hard) by ops" in asked and "until somebody resumes it: fan swap" in asked
    lane_alone = ask(app_client, action="resume", box="spark", queue="frames", project="render").text
    assert "This order is taken back:" in lane_alone and "fan swap" not in lane_alone
    assert "there is nothing to take back" in ask(app_client, action="resume", box="spark", queue="cpu").text


def test_a_cordon_says_how_it_differs_from_park_and_what_counts_after_it(quick: TestClient, rows: Db) -> None:
    form = ask(quick, action="cordon", box="kite", queue="*")
    assert "also those that start later" in form.text and "Uncordon takes that one order away" in form.text
    post(quick, "/page/order", [*form.fields(action="cordon"), ("policy", "drain"), ("reason", "dust")])
    assert "cordoned by web:loopback: dust" in page(quick, "/").text
    asked = ask(quick, action="uncordon", box="kite", queue="*").text
    taken, _, left = asked.partition("It stays off by what counts again:")
    assert "This order is taken back:" in taken and "dust" in taken and "fan swap" in left


def _order(box: str, queue: str, desired: str = "off", project: str = "p") -> dict[str, object]:
    who = {"policy": "hard", "reason": None, "requested_by": None, "updated_at": None, "until": None}
    return {"box": box, "queue": queue, "project": project, "desired": desired, **who}


@pytest.mark.parametrize(
    ("action", "box", "queue", "newest_first", "taken"),
    [
        ("resume", "*", "*", [_order("a", "gpu"), _order("*", "cpu")], ["gpu on a", "cpu on every box"]),
        ("resume", "a", "gpu", [_order("*", "*"), _order("a", "gpu")], ["every lane of every box"]),
        ("resume", "a", "gpu", [_order("a", "gpu", "on"), _order("*", "*")], []),
        ("resume", "*", "*", [_order("a", "gpu", "on"), _order("*", "gpu")], ["gpu on every box"]),
        ("resume", "a", "*", [_order("b", "gpu"), _order("a", "gpu", project="other")], []),
        ("uncordon", "a", "*", [_order("a", "gpu"), _order("a", "*")], ["a, every lane"]),
    ],
)
def test_orders_that_end_are_those_that_hold(
    action: str, box: str, queue: str, newest_first: list[dict[str, object]], taken: list[str]
) -> None:
    scope = orders.Scope(action, box, queue, ("p",))
    assert [one.where().removesuffix(", project p") for one in orders.taken_back(scope, newest_first)] == taken


SCOPES = [
    ({"action": "park", "box": "*", "queue": "frames"}, {("*", "frames", "render"), ("*", "frames", "speech")}),
    ({"action": "park", "box": "*", "queue": "frames", "project": "speech"}, {("*", "frames", "speech")}),
    ({"action": "cordon", "box": "spark", "queue": "*"}, {("spark", "*", "render"), ("spark", "*", "speech")}),
    ({"action": "park", "box": "*", "queue": "*"}, {("*", "*", ""), ("*", "*", "render"), ("*", "*", "speech")}),
]


@pytest.mark.parametrize(("of", "rows"), SCOPES)
def test_a_scope_writes_the_orders_that_the_deck_writes(
    sqlite_store: Store, web_settings: WebSettings, of: dict[str, str], rows: set[tuple[str, str, str]]
) -> None:
    with sqlite_store.connect("test") as db, in_process(sqlite_store, web_settings) as client:
        seed(db)
        form = ask(client, **of).fields(action=of["action"])
        post(client, "/page/order", [*form, ("policy", "drain")])
        found = db.all(
            "select box, queue, project from worker_controls where desired = 'off' and requested_by = 'web:loopback'"
        )
        assert {tuple(row.values()) for row in found} == rows
        if of["action"] == "cordon":
            assert "Uncordon" in page(client, "/").text
            lifted = ask(client, action="uncordon", box="spark", queue="*").fields(action="uncordon")
            post(client, "/page/order", lifted)
        else:
            post(client, "/page/order", ask(client, **{**of, "action": "resume"}).fields(action="resume"))
        assert controls.order_for(db, "spark", "frames", "speech").desired == "on"


def test_an_order_that_makes_no_sense_is_refused(quick: TestClient, rows: Db) -> None:
    form = ask(quick, action="park", box="spark", queue="frames").fields(action="park")
    for name, value in (("policy", "gently"), ("for", "soon"), ("action", "melt"), ("box", ""), ("queue", "\x1b")):
        fields = [pair for pair in [*form, ("policy", "drain")] if pair[0] != name] + [(name, value)]
        answer = quick.post("/page/order", content=urlencode(fields), headers={"content-type": FORM})
        assert answer.status_code == 422 and "Refused" in answer.text, name
    assert quick.get("/page/order?action=park&box=nix&queue=frames").status_code == 404
    assert quick.get("/page/order?action=cordon&box=*&queue=*").status_code == 422
    assert rows.value("select count(*) from worker_controls where box = 'spark'") == 0


# -- jobs


def test_jobs_are_cancelled_killed_run_next_and_run_again(app_client: TestClient, db: Db, seeded: Seeded) -> None:
    def act(number: int, action: str) -> str:
        token = page(app_client, f"/page/jobs/{number}").forms()[0][0]
        return post(app_client, f"/page/jobs/{number}/{action}", [token])

    asked = page(app_client, f"/page/jobs/{seeded.running}/kill")
    assert "queued again in front" in asked.text and db.value("select count(*) from control_events") == 0
    kill = f"/page/jobs/{seeded.running}/kill"
    assert "is being killed" in post(app_client, kill, asked.fields())
    assert "runs next" in act(seeded.queued, "next")
    again = act(seeded.failed, "retry")
    assert "enqueued again" in again and f"retry of{seeded.failed}" in "".join(again.split()).replace(
        "retryof", "retry of"
    )
    cancel = f"/page/jobs/{seeded.queued}/cancel"
    assert "cancelled" in post(app_client, cancel, page(app_client, cancel).fields())
    rows = db.all("select action, requested_by from control_events order by id")
    assert [row["action"] for row in rows] == ["kill_job", "run_next", "retry_job", "cancel_job"]
    assert {row["requested_by"] for row in rows} == {"web:loopback"}


def test_what_has_ended_offers_nothing_to_cancel(quick: TestClient, rows: Db) -> None:
    number = rows.value("select id from ingest_jobs where status = 'completed'")
    assert not page(quick, f"/page/jobs/{number}").forms()
    asked = page(quick, f"/page/jobs/{number}/cancel")
    assert "there is nothing to do" in asked.text and not asked.forms()


# -- who may


def test_a_form_of_another_site_or_of_nobody_changes_nothing(quick: TestClient, rows: Db) -> None:
    form = [*ask(quick, action="park", box="spark", queue="frames").fields(action="park"), ("policy", "hard")]
    without = [pair for pair in form if pair[0] != "form_token"]
    token = dict(form)["form_token"]
    forged = [*without, ("form_token", token[:-1] + ("1" if token.endswith("0") else "0"))]
    for fields, headers in (
        (without, {}),
        (forged, {}),
        (form, {"origin": "http://evil.example"}),
        (form, {"origin": "null"}),
        (form, {"sec-fetch-site": "cross-site"}),
    ):
        answer = quick.post("/page/order", content=urlencode(fields), headers={"content-type": FORM, **headers})
        assert answer.status_code == 403, (headers, answer.text)
    answer = quick.post("/page/order", json=dict(form))
    assert answer.status_code == 422
    assert rows.value("select count(*) from control_events") == 0
    post(quick, "/page/order", form, origin="http://localhost", **{"sec-fetch-site": "same-origin"})
    assert rows.value("select count(*) from control_events") == 2  # one for each project


def test_who_may_only_look_sees_everything_and_has_no_buttons(reader: TestClient, rows: Db) -> None:
    number = rows.value("select id from ingest_jobs where status = 'running'")
    for path in (*PAGES, f"/page/jobs/{number}"):
        found = page(reader, path)
        assert not found.all("form", method="post") and not found.all("a", **{"class": "do"}), path
    assert "drawing" in page(reader, "/").text and "read only" in page(reader, "/").text
    assert reader.get("/page/order?action=park&box=spark&queue=frames").status_code == 403
    for path in ("/page/order", f"/page/jobs/{number}/cancel"):
        assert reader.post(path, content="", headers={"content-type": FORM}).status_code == 403
    assert rows.value("select count(*) from control_events") == 0


@pytest.mark.parametrize(
    "given",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a b", "/\x00", "/é"],
)
def test_nobody_is_sent_away_from_here(given: str) -> None:
    assert local_path(given) == "/"


def test_a_path_of_ours_is_gone_back_to() -> None:
    assert local_path("/page/jobs?status=failed") == "/page/jobs?status=failed"


# -- when something is wrong


def test_without_its_database_the_page_shows_the_last_look_and_its_age(
    pg_store: Store, server_url: str, web_settings: WebSettings
) -> None:
    with in_process(pg_store, replace(web_settings, wait_seconds=1.0)) as client:
        with pg_store.connect("test") as db:
            seed(db)
        assert "spark" in page(client, "/").text
        name = urlsplit(pg_store.url).path.strip("/")
        with psycopg.connect(server_url, autocommit=True) as raw:
            raw.execute(f"alter database {name} allow_connections false")
            raw.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        client.app.state.looks.forget()  # type: ignore[attr-defined]
        away = page(client, "/").text
        assert "NOT LIVE the database does not answer. What is shown here is" in away and "spark" in away
        nothing = client.get("/page/queues")
        assert nothing.status_code == 503 and "NOTHING TO SHOW" in nothing.text and "retry-after" in nothing.headers
        assert "psycopg" not in nothing.text and "Traceback" not in nothing.text


def test_a_fault_of_ours_is_a_page_without_a_trace(quick: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("s3cret inside")

    monkeypatch.setattr(views.queues, "queues_view", fails)
    answer = quick.get("/page/queues")
    assert answer.status_code == 500 and "request" in answer.text
    assert "s3cret" not in answer.text and "RuntimeError" not in answer.text


def test_the_reference_has_every_call(quick: TestClient) -> None:
    text = page(quick, "/docs").text
    for path in quick.get("/openapi.json").json()["paths"]:
        assert path in text
