"""GET /metrics: exactly the numbers of the contract as JSON, and the fleet for Prometheus, which must never see a counter fall."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from engine.queue.claim import ClaimRequest, claim
from engine.queue.enqueue import enqueue
from engine.queue.family import INGEST
from engine.queue.finish import Outcome, finish
from engine.queue.requeue import requeue, requeue_lost
from engine.queue.workers import Worker
from engine.store import Db
from engine.web import metrics
from engine.web.metrics import Kept, wants_text
from tests.support import ROOT
from tests.web.test_jobs import refused

WORKER = Worker("b1", "training", "", "life-1")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "KEPT_S", 0.0)


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[(f"flightdeck_{name}", tuple(sorted(labels.items())))]


def counters(found: Samples) -> Samples:
    return {key: n for key, n in found.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}


def begin(db: Db) -> tuple[int, int]:
    (job,) = claim(db, ClaimRequest(worker=WORKER, n=1, lease_s=600.0))
    return job.id, job.fencing_token


def end(db: Db, job: tuple[int, int], status: str = "completed", **more: Any) -> None:
    finish(db, WORKER, [Outcome(*job, status, **more)])


def add(db: Db, **more: Any) -> int:
    return int(enqueue(db, task_name="train", queue="training", project=more.pop("project", ""), **more).id)


def history(db: Db) -> None:
    """Four jobs: succeeded after a retry and a lost lane, failed, cancelled, running; and one that waits, and a stranger."""
    add(db, max_attempts=2)
    end(db, begin(db), "failed", error="boom", elapsed_s=0.5)
    db.run("update ingest_jobs set run_after = null where status = 'queued'")
    job_id, token = begin(db)
    row = {"id": job_id, "fencing_token": token, "claimed_by": WORKER.owner}
    requeue_lost(db, INGEST, [row], "lane_lost", shun=False)
    end(db, begin(db), elapsed_s=2.0)
    for status in ("failed", "cancelled"):
        add(db)
        end(db, begin(db), status, error=status, elapsed_s=0.25)
    add(db, priority=1)
    begin(db)
    add(db)
    add(db, project="lab")


def test_json_has_exactly_the_contract_s_names_about_the_project(app_client: TestClient, db: Db) -> None:
    empty = app_client.get("/metrics").json()
    assert empty == {
        "total": 0, "queued": 0, "running": 0, "succeeded": 0, "failed": 0, "cancelled": 0, "retried": 0,
        "expired_leases": 0, "mean_run_s": None,
    }  # fmt: skip
    history(db)
    at = db.value("select started_at from ingest_jobs where status = 'completed'")
    db.run("update ingest_jobs set finished_at = {end} where status = 'completed'", end=at + timedelta(seconds=2.5))
    found = app_client.get("/metrics?format=json").json()
    assert found == {
        "total": 5, "queued": 1, "running": 1, "succeeded": 1, "failed": 1, "cancelled": 1, "retried": 2,
        "expired_leases": 1, "mean_run_s": pytest.approx(2.5, abs=0.001),
    }  # fmt: skip
    assert app_client.get("/metrics", headers={"accept": "application/json"}).json() == found


def test_counters_begin_at_nothing_and_count_each_event_once(app_client: TestClient, db: Db) -> None:
    history(db)
    place = {"queue": "training", "project": ""}
    first = scrape(app_client)
    assert value(first, "queue_depth", **place) == 1 and value(first, "queue_running", **place) == 1
    assert value(first, "queue_depth", queue="training", project="lab") == 1
    assert 0 <= value(first, "queue_oldest_age_seconds", **place) < 600
    assert value(first, "claims_total", **place) == value(first, "attempts_total", outcome="completed", **place) == 0
    db.run("delete from ingest_jobs where status = 'queued'")
    history(db)
    second = scrape(app_client)
    assert counters(scrape(app_client)) == counters(second)
    for outcome, n in (("completed", 1), ("failed", 1), ("cancelled", 1), ("requeued", 2)):
        assert value(second, "attempts_total", outcome=outcome, **place) == n
    assert value(second, "requeues_total", cause="retry", **place) == 1
    assert value(second, "requeues_total", cause="lane_lost", **place) == 1
    assert value(second, "requeues_total", cause="trip", **place) == 0
    # Six begun: the one that ran before is among those that ended or still run.
    assert value(second, "claims_total", **place) == 6
    assert value(second, "job_run_seconds_count", **place) == 1 and value(second, "job_run_seconds_sum", **place) == 2.0
    assert value(second, "job_run_seconds_bucket", le="1.0", **place) == 0
    assert value(second, "job_run_seconds_bucket", le="5.0", **place) == 1
    assert (
        value(second, "job_wait_seconds_count", **place) == 1
    )  # the failed one: others did not end in their first attempt


def test_no_counter_falls_when_old_rows_go(app_client: TestClient, db: Db) -> None:
    scrape(app_client)
    history(db)
    before = scrape(app_client)
    db.run("delete from job_events where event_type <> 'cancelled'")
    db.run("delete from ingest_jobs where status in ('completed', 'failed', 'cancelled')")
    after = scrape(app_client)
    assert any(counters(before).values())
    for key, was in counters(before).items():
        assert after[key] >= was, key


def test_a_trip_has_its_exit_code(app_client: TestClient, db: Db) -> None:
    scrape(app_client)
    add(db)
    job_id, token = begin(db)
    requeue(db, WORKER, {job_id: token}, "trip", exit_code=75, detail={"reason": "75 budget"})
    found = scrape(app_client)
    place = {"queue": "training", "project": ""}
    assert value(found, "trips_total", exit_code="75", reason="budget", **place) == 1
    assert value(found, "trips_total", exit_code="76", reason="stall", **place) == 0
    assert value(found, "requeues_total", cause="trip", **place) == 1


def test_lanes_by_state_and_throttle_seconds_by_box_and_cause(app_client: TestClient, db: Db) -> None:
    db.run("insert into boxes (box) values ('spark')")
    scrape(app_client)
    for box, state, seen in (("b1", "running", 0), ("b2", "parked", 0), ("b3", "running", 100), ("b4", "stopping", 0)):
        db.run(
            "insert into worker_heartbeats (box, queue, state, slots, busy, last_seen) "
            "values ({box}, 'training', {state}, 2, 1, {before[seen]})",
            box=box,
            state=state,
            seen=seen,
        )
    for second, thermal in ((1, 500.0), (3, 1500.0)):
        db.run(
            "insert into flight_recorder (box, at, tier, thermal_ms, power_ms) values ('spark', {after[s]}, 'detail', {ms}, null)",
            s=second,
            ms=thermal,
        )
    found = scrape(app_client)
    place = {"queue": "training", "project": ""}
    assert [value(found, "lanes", state=state, **place) for state in ("running", "parked", "silent")] == [1, 1, 1]
    assert (value(found, "lane_slots", **place), value(found, "lane_slots_busy", **place)) == (4, 2)
    assert value(found, "throttle_seconds_total", box="spark", cause="thermal") == 2.0
    assert value(found, "throttle_seconds_total", box="spark", cause="power") == 0.0
    assert scrape(app_client)[("flightdeck_throttle_seconds_total", (("box", "spark"), ("cause", "thermal")))] == 2.0
    assert value(found, "box_sample_age_seconds", box="spark") >= 0.0
    assert value(found, "leader") == 0


def test_the_form_follows_the_accept_header_and_format_goes_before_it(app_client: TestClient) -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    answer = app_client.get("/metrics", headers={"accept": prometheus})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n") and list(open_families(answer.text))
    assert app_client.get("/metrics?format=json", headers={"accept": prometheus}).json()["total"] == 0
    assert "# TYPE" in app_client.get("/metrics?format=prometheus").text
    assert "# TYPE" in app_client.get("/metrics", headers={"accept": "text/plain;version=abc"}).text
    refused(app_client.get("/metrics?format=xml"), 422, "xml")
    refused(app_client.get("/metrics?fromat=json"), 422, "fromat")


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        ("*/*", False), ("", False), ("application/json", False), ("text/plain", True), ("text/plain;version=0.0.4", True),
        ("application/json, text/plain;q=0.5", False), ("text/plain;q=0.9, application/json;q=0.8", True),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False), ("text/plain;q=x", False),
    ],
)  # fmt: skip
def test_which_form_an_accept_header_asks_for(accept: str, text: bool) -> None:
    assert wants_text(accept) is text


def test_a_long_look_serves_all_who_ask_within_a_second_and_a_quick_one_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "KEPT_S", 1.0)
    now, made = [0.0], []
    kept: Kept[int] = Kept(lambda: now[0])

    def make(seconds: float) -> int:
        now[0] += seconds
        made.append(now[0])
        return len(made)

    assert [kept.get(lambda: make(0.05)), kept.get(lambda: make(0.05))] == [1, 2]
    assert [kept.get(lambda: make(0.5)), kept.get(lambda: make(0.5))] == [3, 3]
    now[0] += 0.9
    assert kept.get(lambda: make(0.5)) == 3
    now[0] += 0.2
    assert kept.get(lambda: make(0.05)) == 4


# -- what docs/ ships for Prometheus and Grafana


def exported(client: TestClient) -> set[str]:
    return {name for name, _ in scrape(client)}


def named(text: str) -> set[str]:
    return set(re.findall(r"\bflightdeck_[a-z0-9_]+", text))


def test_every_metric_of_the_dashboard_and_of_the_alert_rules_is_exported(app_client: TestClient, db: Db) -> None:
    db.run("insert into boxes (box) values ('spark')")
    db.run("insert into flight_recorder (box, tier) values ('spark', 'detail')")
    db.run("insert into worker_heartbeats (box, queue, state) values ('b1', 'training', 'running')")
    db.run("insert into services (kind, box, incarnation) values ('recorder', 'spark', 'life-1')")
    history(db)
    there = exported(app_client)
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    rules = yaml.safe_load((ROOT / "docs" / "alert-rules.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [str(variable["query"]) for variable in dashboard["templating"]["list"]]
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert asked and alerts
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for rule in alerts:
        assert rule["labels"]["severity"] and rule["annotations"]["summary"] and rule["annotations"]["description"]
    wanted = set().union(*(named(text) for text in (*asked, *(rule["expr"] for rule in alerts))))
    assert wanted <= there, wanted - there
    page = Path(ROOT / "docs" / "api.md").read_text()
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in there} <= named(page)
