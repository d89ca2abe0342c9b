"""What a caller gets wrong is refused by a text that names it, and nothing is written."""

from __future__ import annotations

import math
import os
import secrets
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import registry
from engine.commands import claim_worker
from engine.errors import BadInput
from engine.store import Db, Store

HALF = "\ud800"  # no database holds half a character
WRONG: list[Any] = [1, 1.5, math.nan, math.inf, True, b"x", "a\x00b", HALF, [], {}, object()]
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))


@pytest.fixture
def here(store: Store, db: Db) -> Db:
    engine.configure(db_url=store.url)
    engine.register_ingest_task("fine", lambda: None)
    return db


def _written(db: Db) -> int:
    tables = ("ingest_jobs", "workflow_runs", "worker_controls", "control_events", "model_orders")
    return sum(db.value(f"select count(*) as n from {table}") for table in tables)


def test_a_value_of_the_wrong_kind_is_refused_before_any_write(here: Db) -> None:
    job = {"task_name": "fine", "queue": "default"}
    graph = {"name": "g", "nodes": [{"id": "a", "node": "n"}]}
    moments = [datetime(2026, 1, 1), datetime.min.replace(tzinfo=EAST), datetime.max.replace(tzinfo=WEST)]
    for value in WRONG:
        for key in ("task_name", "queue", "idempotency_key", "project", "run_after"):
            with pytest.raises(BadInput):
                engine.enqueue_ingest_job(**{**job, key: value})
        for call in (engine.submit_run, engine.cordon, engine.uncordon):
            with pytest.raises(BadInput):
                call(*([graph] if call is engine.submit_run else []), project=value)
        for key in ("queue", "project", "until"):
            with pytest.raises(BadInput):
                engine.park(**{"queue": "cpu", key: value})
        for key in ("model", "queue", "project"):
            with pytest.raises(BadInput):
                engine.preload_model(**{"model": "m", key: value})
        for ids in (engine.run_next, engine.cancel_run, engine.retry_run):
            if value != 1 or value is True:
                with pytest.raises(BadInput):
                    ids(value)
    for moment in moments:
        with pytest.raises(BadInput, match="run_after"):
            engine.enqueue_ingest_job(**job, run_after=moment)
    for box in ("a\x00b", HALF, "x" * 201):
        with pytest.raises(BadInput, match="box"):
            engine.park(queue="cpu", box=box)
    assert _written(here) == 0


def test_who_asked_and_why_is_kept_whatever_it_is(here: Db) -> None:
    for said in (7, HALF, "a\x00b"):
        engine.park(queue="cpu", box="b1", reason=said, requested_by=said)  # type: ignore[arg-type]
        engine.resume(queue="cpu", box="b1", requested_by=said)  # type: ignore[arg-type]
    assert here.value("select count(*) as n from control_events") == 6


def test_the_latest_moment_can_be_waited_for(here: Db) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert engine.enqueue_ingest_job(task_name="fine", queue="default", run_after=last).run_after == last


def test_a_registration_that_could_not_work_is_refused_by_name() -> None:
    for number in (math.nan, math.inf, -1, "8", None, True):
        with pytest.raises(BadInput, match="model big"):
            engine.register_model("big", lambda: 1, est_vram_gb=number)  # type: ignore[arg-type]
        if number is not None:
            with pytest.raises(BadInput, match="task t"):
                engine.register_ingest_task("t", lambda: None, budget_s=number)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="task t"):
            engine.register_ingest_task("t", lambda: None, max_attempts=number)  # type: ignore[arg-type]
    for fn in (None, 5, "name"):
        for register in (engine.register_node, engine.register_ingest_task, engine.register_model):
            with pytest.raises(BadInput, match="thing"):
                register("thing", fn)  # type: ignore[operator]
        if fn is not None:
            with pytest.raises(BadInput, match="model big"):
                engine.register_model("big", lambda: 1, fn)  # type: ignore[arg-type]


def test_a_setting_that_no_database_could_count_with_is_refused() -> None:
    """An endless lease was taken, and every claim failed."""
    for name, value in (("lease_seconds", math.inf), ("retention_jobs_days", 1e9), ("grace", math.nan)):
        with pytest.raises(engine.ConfigError, match=name):
            engine.configure(**{name: value})


@pytest.mark.parametrize("app", ["../jobs", ".jobs", "jobs..more", "my/jobs"])
def test_an_app_that_is_no_module_is_wrong_use(app: str) -> None:
    """The lane took it for a defect that may pass, and tried for ever."""
    with pytest.raises(engine.ConfigError, match="--app"):
        registry.load_app(app)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import json\nimport nosuchthing\n", "{app}.py:2: ModuleNotFoundError: No module named 'nosuchthing'"),
        ("def f(:\n", "{app}.py:1: SyntaxError: invalid syntax"),
        ("\n@task\ndef f(): ...\n", "{app}.py:2: NameError: name 'task' is not defined"),
        ("\n\nfrom json import nope\n", "{app}.py:3: ImportError: cannot import name 'nope'"),
        ("from fd_helper_of_apps import x\n", "fd_helper_of_apps.py:1: ImportError: cannot import name 'y' from 'os'"),
    ],
    ids=["import", "syntax", "name", "from", "helper"],
)
def test_an_app_that_cannot_be_imported_is_told_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    app = f"fd_app_{secrets.token_hex(4)}"
    (tmp_path / f"{app}.py").write_text(text)
    (tmp_path / "fd_helper_of_apps.py").write_text("from os import y\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(engine.ConfigError) as refused:
        registry.load_app(app)
    told = str(refused.value)
    assert told.startswith(f"--app {app}: cannot be imported: {tmp_path}{os.sep}{says.format(app=app)}"), told
    assert "\n" not in told


def test_an_app_that_is_not_there_is_told_without_a_place() -> None:
    with pytest.raises(
        engine.ConfigError, match=r"^--app fd_no_such_app: cannot be imported: ModuleNotFoundError: [^:]*$"
    ):
        registry.load_app("fd_no_such_app")


@pytest.mark.parametrize("slots", [("--slots", "99999999"), ("--model-slots", "5000")])
def test_a_slip_of_the_finger_does_not_start_a_million_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, slots: tuple[str, str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["queue-claim-worker", "--queue", "gpu", "--db", "sqlite:///none.db", *slots])
    with pytest.raises(SystemExit) as ended:
        claim_worker.main()
    assert ended.value.code == 2 and "at most" in capsys.readouterr().err
