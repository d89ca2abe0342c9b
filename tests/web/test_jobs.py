"""The job API's contract: every row of its table, on PostgreSQL and SQLite."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine import config
from engine.queue import listing
from engine.queue.claim import ClaimRequest, claim
from engine.queue.enqueue import enqueue
from engine.queue.finish import Outcome, finish
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.web.settings import WebSettings
from tests.support import Processes
from tests.web.conftest import in_process, start_service

JOB_KEYS = {
    "id", "task", "queue", "status", "payload", "result", "error", "attempt", "max_attempts", "progress",
    "created_at", "started_at", "finished_at",
}  # fmt: skip
WORKER = Worker("b1", "training", "", "life-1")


def refused(answer: Any, status: int, *words: str) -> dict[str, Any]:
    """A problem of this status whose detail has these words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status and body["title"] and body["instance"] and body["request_id"]
    for word in words:
        assert word in body["detail"], body["detail"]
    return body


def post(client: TestClient, payload: Any = None, **fields: Any) -> dict[str, Any]:
    answer = client.post("/jobs", json={"payload": payload or {"steps": 3}, **fields})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def begin(db: Db) -> tuple[int, int]:
    """What a lane does first: (id, fence) of the job that it claims."""
    (job,) = claim(db, ClaimRequest(worker=WORKER, n=1, lease_s=600.0))
    return job.id, job.fencing_token


def end(db: Db, job: tuple[int, int], status: str = "completed", **more: Any) -> None:
    assert finish(db, WORKER, [Outcome(*job, status, **more)]).done == {job[0]}


def test_a_job_from_its_submission_to_its_result(app_client: TestClient, db: Db) -> None:
    answer = app_client.post("/jobs", json={"payload": {"steps": 3, "name": "Grüße \U0001f680"}})
    job = answer.json()
    assert answer.status_code == 201 and answer.headers["location"] == f"/jobs/{job['id']}"
    assert set(job) == JOB_KEYS
    assert job == {
        **job, "task": "train", "queue": "training", "status": "queued", "result": None, "error": None, "attempt": 0,
        "max_attempts": 1, "progress": None, "started_at": None, "finished_at": None,
        "payload": {"steps": 3, "name": "Grüße \U0001f680"},
    }  # fmt: skip
    assert isinstance(job["id"], str) and job["created_at"].endswith("Z")
    assert app_client.get(f"/jobs/{job['id']}").json() == job
    held = begin(db)
    db.run("update ingest_jobs set progress_pct = 41.5 where id = {id}", id=held[0])
    running = app_client.get(f"/jobs/{job['id']}").json()
    assert (running["status"], running["attempt"], running["progress"]) == ("running", 1, 41.5)
    end(db, held, output_json='{"loss": 0.25}', elapsed_s=1.5)
    over = app_client.get(f"/jobs/{job['id']}").json()
    assert set(over) == JOB_KEYS
    assert (over["status"], over["result"], over["error"], over["progress"]) == (
        "succeeded",
        {"loss": 0.25},
        None,
        100.0,
    )
    assert over["finished_at"] >= over["started_at"] >= over["created_at"]


def test_a_failed_job_tells_why_and_a_foreign_row_is_strict_json_all_the_same(app_client: TestClient, db: Db) -> None:
    job = post(app_client, max_attempts=2)
    held = begin(db)
    end(db, held, "failed", error="ValueError: no such file", elapsed_s=0.5)
    again = app_client.get(f"/jobs/{job['id']}").json()
    assert (again["status"], again["attempt"], again["error"]) == ("queued", 1, "ValueError: no such file")
    odd = "'[1e400]'" if db.kind == "postgresql" else "'{broken'"
    db.run(
        f"update ingest_jobs set result = {odd.replace('{', '{{')}, status = 'completed' where id = {{id}}", id=held[0]
    )
    text = app_client.get(f"/jobs/{job['id']}").text
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word))["status"] == "succeeded"


def test_what_is_refused_in_a_body_changes_nothing_and_is_named(app_client: TestClient, db: Db) -> None:
    good = {"payload": {"steps": 1}}
    deep = "[" * 5000 + "]" * 5000
    raw = {"content-type": "application/json"}
    for fields, *words in [
        ({"payload": [1]}, "payload"), ({"payload": None}, "payload"), ({"task": "train"}, "payload"),
        ({**good, "priorty": 1}, "priorty"), ({**good, "task": "no-such"}, "no-such"), ({**good, "queue": "gpu"}, "gpu"),
        ({**good, "queue": "nowhere"}, "nowhere"), ({**good, "task": 7}, "task"), ({**good, "priority": True}, "priority"),
        ({**good, "priority": 10**6}, "priority"), ({**good, "priority": 1.5}, "priority"),
        ({**good, "max_attempts": 0}, "max_attempts"), ({**good, "max_attempts": "3"}, "max_attempts"),
        ({**good, "run_after": "2026-01-31T12:00:00"}, "run_after"), ({**good, "run_after": "tomorrow"}, ": a time with its zone, such as 2026-01-31T12:00:00Z"),
        ({**good, "run_after": "2026-02-30T12:00:00Z"}, "run_after"), ({**good, "run_after": 1700000000}, "run_after"),
        ({**good, "run_after": "0001-01-01T00:00:00+23:00"}, "run_after"),
        ({"payload": {"a": "\0"}}, "NUL"), ({"payload": {"a": "\ud800"}}, "surrogate"),
        ([good], "object"), ("text", "object"), (None, "object"),
    ]:  # fmt: skip
        refused(app_client.post("/jobs", content=json.dumps(fields), headers=raw), 422, *words)
    for text, word in [
        ('{"payload": {"a": NaN}}', "NaN"), ('{"payload": {"a": -Infinity}}', "Infinity"),
        ('{"payload": {"a": 1e999}}', "JSON"), ('{"payload": {"a": 1, "a": 2}}', "'a'"), ('{"payload": {}, "payload": {}}', "payload"),
        ('{"payload": {"a": 1}', "line 1"), ("", "empty"), ("   ", "empty"), ('\ufeff{"payload": {}}', "JSON"),
        (f'{{"payload": {{"a": {deep}}}}}', "deep"), ('{"payload": {"a": ' + "9" * 5000 + "}}", "digits"),
    ]:  # fmt: skip
        refused(app_client.post("/jobs", content=text.encode(), headers=raw), 422, word)
    refused(app_client.post("/jobs", content=b'{"payload": {"a": "\xff"}}', headers=raw), 422, "UTF-8")
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused(app_client.post("/jobs", content=json.dumps(good), headers=form), 422, "Content-Type")
    errors = refused(app_client.post("/jobs", json={**good, "task": 7, "foo": 1}), 422)["errors"]
    assert {error["where"] for error in errors} == {"task", "foo"}
    assert db.value("select count(*) as n from ingest_jobs") == 0
    assert post(app_client, priority=3.0)["status"] == "queued"  # a whole number to JSON


def test_a_payload_over_one_mebibyte_is_413_and_one_below_is_taken(app_client: TestClient, db: Db) -> None:
    most = 1024 * 1024 - len('{"a":""}')
    assert app_client.post("/jobs", json={"payload": {"a": "x" * most}}).status_code == 201
    refused(app_client.post("/jobs", json={"payload": {"a": "x" * (most + 1)}}), 413, "1,048,576")
    refused(app_client.post("/jobs", json={"payload": {"a": "x" * 3 * most}}), 413)
    assert db.value("select count(*) as n from ingest_jobs") == 1


def test_run_after_in_the_future_waits_and_in_the_past_does_not(app_client: TestClient, db: Db) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    waits = post(app_client, run_after=later.isoformat())
    assert not claim(db, ClaimRequest(worker=WORKER, n=1, lease_s=600.0))
    stored = db.value("select run_after from ingest_jobs where id = {id}", id=int(waits["id"]))
    assert stored == later
    due = post(app_client, run_after="2020-01-01T00:00:00.5-01:00")
    assert str(begin(db)[0]) == due["id"]
    assert app_client.get("/jobs?status=queued").json()["total"] == 1


def test_an_id_that_names_no_job_of_this_project_is_404(app_client: TestClient, db: Db) -> None:
    other = enqueue(db, task_name="train", queue="training", project="lab").id
    largest = 2**63 - 1 if db.kind == "postgresql" else 10**18
    db.run("insert into ingest_jobs (id, task_name) values ({id}, 'train')", id=largest)
    assert app_client.get(f"/jobs/{largest}").json()["id"] == str(largest)
    for number in (other, "0", "999", "-1", "1.0", "abc", "1e3", str(2**63), "9" * 40, "٣", "+1"):
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "/log")):
            refused(app_client.request(method, f"/jobs/{number}{path}"), 404)
    assert app_client.get("/jobs").json()["total"] == 1
    assert app_client.request("PUT", "/jobs/1").status_code == 405


def test_pages_by_offset_and_by_key_with_filters_and_totals(app_client: TestClient, db: Db) -> None:
    ids = [post(app_client, {"n": n}, queue="default" if n % 2 else "training")["id"] for n in range(7)]
    enqueue(db, task_name="train", queue="training", project="lab")
    db.run("update ingest_jobs set status = 'completed' where id = {id}", id=int(ids[0]))
    db.run("update ingest_jobs set status = 'failed' where id = {id}", id=int(ids[2]))

    def page(query: str) -> tuple[list[str], int, int, int, str | None]:
        answer = app_client.get(f"/jobs{query}")
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert all(set(item) == JOB_KEYS for item in body["items"])
        return [item["id"] for item in body["items"]], body["total"], body["limit"], body["offset"], body["next"]

    assert page("") == (ids[::-1], 7, 50, 0, None)
    assert page("?limit=3") == (ids[:3:-1], 7, 3, 0, ids[4])
    assert page("?limit=3&offset=3") == ([ids[3], ids[2], ids[1]], 7, 3, 3, ids[1])
    assert page(f"?limit=3&after={ids[1]}") == ([ids[0]], 7, 3, 0, None)
    assert page("?offset=100") == ([], 7, 50, 100, None)
    assert page("?status=succeeded") == ([ids[0]], 1, 50, 0, None)
    assert page("?status=failed") == ([ids[2]], 1, 50, 0, None)
    assert page("?status=running")[1] == page("?status=cancelled")[1] == 0
    assert page("?status=queued&queue=default&limit=2") == ([ids[5], ids[3]], 3, 2, 0, ids[3])
    assert page("?task=other") == ([], 0, 50, 0, None)
    assert page("?task=train&queue=training")[1] == 4
    for query, word in [
        ("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=1.0", "limit"),
        ("offset=-1", "offset"), ("offset=" + "9" * 30, "offset"), ("status=completed", "status"), ("status=", "status"),
        ("after=x", "after"), ("after=-1", "after"), (f"after={2**63}", "after"), ("limit=1&limit=2", "limit"),
        ("stauts=queued", "stauts"), ("task=", "task"), ("queue=%00", "queue"),
    ]:  # fmt: skip
        refused(app_client.get(f"/jobs?{query}"), 422, word)


def test_a_page_ends_early_behind_eight_mebibytes_and_the_next_goes_on(app_client: TestClient) -> None:
    ids = [post(app_client, {"a": "x" * 1_000_000})["id"] for _ in range(11)]
    first = app_client.get("/jobs?limit=50").json()
    assert first["limit"] == len(first["items"]) == 9 and first["total"] == 11 and first["next"] == ids[2]
    rest = app_client.get(f"/jobs?offset={first['offset'] + first['limit']}").json()
    assert [job["id"] for job in rest["items"]] == [ids[1], ids[0]] and rest["next"] is None
    assert app_client.get(f"/jobs?after={first['next']}").json()["items"] == rest["items"]


def test_a_count_that_took_long_is_believed_for_a_while_and_new_jobs_are_added(
    app_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "QUICK_S", -1.0)
    monkeypatch.setattr(listing, "BELIEVED", 1e9)
    monkeypatch.setattr(listing, "BELIEVED_S", 3600.0)
    monkeypatch.setattr(listing, "LOOKED", 1)
    ids = [post(app_client)["id"] for _ in range(3)]
    assert app_client.get("/jobs").json()["total"] == 3
    ids.append(post(app_client)["id"])
    body = app_client.get("/jobs").json()
    assert body["total"] == 4 and [job["id"] for job in body["items"]] == ids[::-1]


def test_cancel_what_waits_what_runs_and_what_is_over(app_client: TestClient, db: Db) -> None:
    waits, runs = post(app_client, priority=200)["id"], post(app_client)["id"]
    held = begin(db)
    assert str(held[0]) == runs
    answer = app_client.delete(f"/jobs/{waits}")
    assert answer.status_code == 200 and answer.json()["status"] == "cancelled" and answer.json()["finished_at"]
    refused(app_client.delete(f"/jobs/{waits}"), 409, "cancelled")
    for _ in range(2):
        answer = app_client.delete(f"/jobs/{runs}")
        assert answer.status_code == 202 and answer.json()["status"] == "running"
    end(db, held, output_json="{}")
    assert app_client.get(f"/jobs/{runs}").json()["status"] == "cancelled"
    refused(app_client.delete(f"/jobs/{runs}"), 409)
    db.run("update ingest_jobs set status = 'completed' where id = {id}", id=int(runs))
    refused(app_client.delete(f"/jobs/{runs}"), 409, f"job {runs} is succeeded already")
    asked = db.all("select requested_by, action from control_events")
    assert {(row["action"], row["requested_by"]) for row in asked} == {("cancel_job", "web:loopback")}


def test_events_and_the_log_of_a_job(app_client: TestClient, db: Db) -> None:
    job = post(app_client, max_attempts=2)["id"]
    assert app_client.get(f"/jobs/{job}/events").json() == {"items": [], "next": None}
    log = app_client.get(f"/jobs/{job}/log")
    assert (log.status_code, log.text, log.headers["x-log-attempt"]) == (200, "", "0")
    held = begin(db)
    end(db, held, "failed", error="boom", elapsed_s=0.5, exit_code=3)
    db.run("update ingest_jobs set run_after = null where id = {id}", id=held[0])
    end(db, begin(db), output_json="{}", elapsed_s=2.5)
    found = app_client.get(f"/jobs/{job}/events").json()["items"]
    assert [(event["type"], event["cause"], event["attempt"], event["box"]) for event in found] == [
        ("requeued", "retry", 1, "b1"),
        ("completed", None, 2, "b1"),
    ]
    assert found[0]["text"] == f"b1 training: train (job {job}) requeued (retry after an error), exit 3: boom"
    assert found[1]["elapsed_s"] == 2.5 and found[0]["detail"] == {"error": "boom"}
    first = app_client.get(f"/jobs/{job}/events?limit=1").json()
    assert first["next"] == first["items"][0]["id"]
    assert app_client.get(f"/jobs/{job}/events?after={first['next']}").json() == {"items": found[1:], "next": None}
    refused(app_client.get(f"/jobs/{job}/events?limit=1001"), 422, "limit")
    db.run(
        "insert into job_logs (family, job_id, attempt, tail, bytes) values ('ingest', {id}, 2, {tail}, 70000)",
        id=held[0],
        tail="<b>step 1</b>\nstep 2 \x1b[31m\n",
    )
    log = app_client.get(f"/jobs/{job}/log")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert (
        log.headers["x-content-type-options"] == "nosniff"
        and "default-src 'none'" in log.headers["content-security-policy"]
    )
    assert (log.text, log.headers["x-log-attempt"], log.headers["x-log-bytes"]) == (
        "<b>step 1</b>\nstep 2 \x1b[31m\n",
        "2",
        "70000",
    )


def test_a_full_queue_is_429_with_retry_after(app_client: TestClient) -> None:
    config.configure(backlog_limit=2)
    post(app_client), post(app_client)
    answer = app_client.post("/jobs", json={"payload": {}})
    refused(answer, 429, "full")
    assert int(answer.headers["retry-after"]) >= 1
    assert app_client.post("/jobs", json={"payload": {}, "queue": "default"}).status_code == 201


def test_a_service_serves_the_jobs_of_its_project_only(store: Store, db: Db, web_settings: WebSettings) -> None:
    mine = enqueue(db, task_name="train", queue="training", project="lab").id
    theirs = enqueue(db, task_name="train", queue="training").id
    with in_process(store, web_settings, project="lab") as client:
        assert [job["id"] for job in client.get("/jobs").json()["items"]] == [mine]
        assert client.get(f"/jobs/{theirs}").status_code == 404
        new = post(client)["id"]
    assert db.value("select project from ingest_jobs where id = {id}", id=int(new)) == "lab"


def test_a_service_bounds_the_backlog_by_itself(sqlite_store: Store, processes: Processes) -> None:
    service = start_service(processes, sqlite_store, {"FLIGHTDECK_WEB_BACKLOG_LIMIT": "1"})
    with service.client() as client:
        assert client.post("/jobs", json={"payload": {}}).status_code == 201
        refused(client.post("/jobs", json={"payload": {}}), 429, "the limit is 1")
