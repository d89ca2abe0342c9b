"""flightdeck snapshot: any page of a real database, without a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import engine
from engine.commands.options import run_app
from engine.store import Store
from flightdeck.cli import cli
from flightdeck.screens.pages import PAGES
from tests.deck.test_recording import flight, written


def snapshot(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_app(cli, "flightdeck", ["snapshot", *args], store_code=2)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_every_page_can_be_printed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """What a page asks is answered by the database itself, on both stores."""
    engine.configure(db_url=store.url)
    engine.register_ingest_task("resize", lambda: None)
    job = engine.enqueue_ingest_job(task_name="resize", queue="default")
    engine.park(queue="gpu", box="spark", requested_by="ops")
    for page, seen in (("jobs", "resize"), (f"job:{job.id}", "resize"), ("queues", "default"), ("events", "spark")):
        code, out, err = snapshot(capsys, "--page", page, "--db", store.url)
        assert (code, err) == (0, "") and seen in out, page


def test_a_page_that_is_none_is_told_in_one_line(capsys: pytest.CaptureFixture[str], sqlite_url: str) -> None:
    for page in ("nosuch", "box", "job:", "jobs:1", ""):
        code, _, err = snapshot(capsys, "--page", page, "--db", sqlite_url)
        assert code == 2 and err.count("\n") == 1 and all(name in err for name in PAGES), page


def test_a_recording_can_be_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a time of it, without any database; text, SVG and the data behind it."""
    file = str(written(tmp_path / "r", flight()))
    code, out, err = snapshot(capsys, "--recording", file, "--at", "20s")
    assert (code, err) == (0, "") and "beelink" in out and "14:03" in out.split("\n")[0]
    code, out, _ = snapshot(capsys, "--recording", file, "--json")
    assert code == 0 and [box["box"] for box in json.loads(out)["boxes"]][:2] == ["beelink", "spark"]
    code, out, err = snapshot(capsys, "--recording", file, "--page", "box:nosuch")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "beelink, spark" in err
    assert snapshot(capsys, "--at", "20s")[0] == 2
    assert snapshot(capsys, "--recording", file, "--at", "noon")[0] == 2
