"""Idempotency keys over HTTP: however often a request comes, and however many at once, there is one job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest
from starlette.testclient import TestClient

from engine import config
from engine.queue.enqueue import enqueue
from engine.store import Db
from tests.web.conftest import Service
from tests.web.test_jobs import refused

BODY = {"payload": {"steps": 3, "b": [1, {"c": None}]}}


def keyed(client: TestClient, key: str, body: object = BODY) -> httpx.Response:
    answer: httpx.Response = client.post("/jobs", json=body, headers={"Idempotency-Key": key})
    return answer


def test_the_same_key_and_body_is_the_first_job_and_another_body_is_refused(app_client: TestClient, db: Db) -> None:
    first = keyed(app_client, "order 17")
    assert first.status_code == 201
    again = keyed(app_client, "order 17")
    assert (again.status_code, again.json()) == (200, first.json())
    assert again.headers["location"] == first.headers["location"]
    # The same to JSON: other order, other spaces, the defaults said aloud.
    same = '{"task": "train", "queue":"training","priority":100, "payload": {"b":[1,{"c":null}],   "steps": 3}}'
    headers = {"Idempotency-Key": "order 17", "content-type": "application/json"}
    assert app_client.post("/jobs", content=same, headers=headers).status_code == 200
    for other in (
        {"payload": {"steps": 4}},
        {**BODY, "priority": 99},
        {**BODY, "queue": "default"},
        {**BODY, "max_attempts": 2},
        {**BODY, "run_after": "2026-01-31T12:00:00Z"},
    ):
        refused(keyed(app_client, "order 17", other), 422, "order 17", first.json()["id"])
    assert keyed(app_client, "order 18").status_code == 201
    assert app_client.post("/jobs", json=BODY).status_code == 201
    assert db.value("select count(*) as n from ingest_jobs") == 3


def test_a_key_belongs_to_its_project_and_outlives_its_job_s_end(app_client: TestClient, db: Db) -> None:
    theirs = enqueue(db, task_name="train", queue="training", args={}, idempotency_key="k", project="lab").id
    mine = keyed(app_client, "k").json()["id"]
    assert mine != theirs
    assert app_client.delete(f"/jobs/{mine}").status_code == 200
    again = keyed(app_client, "k")
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (200, mine, "cancelled")


def test_a_replay_is_200_even_when_the_queue_is_full(app_client: TestClient) -> None:
    config.configure(backlog_limit=1)
    first = keyed(app_client, "k")
    assert first.status_code == 201
    refused(keyed(app_client, "other"), 429)
    again = keyed(app_client, "k")
    assert (again.status_code, again.json()) == (200, first.json())
    refused(keyed(app_client, "k", {"payload": {}}), 422)


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"schl\xfcssel", "schlüssel".encode(), b"a\tb"])
def test_a_key_that_is_none_is_refused(app_client: TestClient, db: Db, key: bytes) -> None:
    refused(app_client.post("/jobs", json=BODY, headers=[(b"idempotency-key", key)]), 422, "Idempotency-Key")
    assert db.value("select count(*) as n from ingest_jobs") == 0


def test_two_keys_in_one_request_are_refused_and_a_long_one_is_taken(app_client: TestClient) -> None:
    two = [("idempotency-key", "a"), ("idempotency-key", "b")]
    refused(app_client.post("/jobs", json=BODY, headers=two), 422, "more than once")
    assert keyed(app_client, "x" * 255).status_code == 201


def test_first_requests_at_the_same_moment_give_one_job(service: Service) -> None:
    n = 8
    gate = Barrier(n)

    def ask(number: int) -> tuple[int, str]:
        with service.client() as client:
            gate.wait(30)
            answer = client.post("/jobs", json=BODY, headers={"Idempotency-Key": f"k{number % 2}"})
            return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(n) as pool:
        answers = list(pool.map(ask, range(n)))
    assert sorted(status for status, _ in answers) == [200] * (n - 2) + [201, 201]
    assert len({id for _, id in answers}) == 2
    with service.store.connect("test") as db:
        assert db.value("select count(*) as n from ingest_jobs") == 2
