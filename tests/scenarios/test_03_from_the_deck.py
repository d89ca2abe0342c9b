"""Scenario 3 as the operator sees it: a real lane parked and resumed by one key in a real terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store import Db, Store
from tests.deck.terminal import Terminal
from tests.lane.fleet import add, beats, ended, gone, history, pid_in, row, start_lane, status, stop
from tests.support import Processes, eventually


@pytest.fixture
def deck(store: Store) -> Iterator[Terminal]:
    terminal = Terminal(("--db", store.url), {}, (120, 40))
    yield terminal
    terminal.close()


def test_one_key_parks_the_lane_that_runs_a_job_and_another_resumes_it(
    store: Store, db: Db, processes: Processes, tmp_path: Path, deck: Terminal
) -> None:
    lane = start_lane(processes, store)
    job = add(db, "touch_and_wait", {"path": str(tmp_path / "job")})
    pid = pid_in(tmp_path / "job")
    behind = add(db, "noop")
    incarnation = beats(db, "running")["incarnation"]
    deck.wait_for("b1")
    deck.wait_for("touch_and_wait")

    deck.keys("p")  # work would be interrupted: it asks once, names the job and the scope, focus on back
    deck.wait_for("hard: kill and requeue")
    assert "touch_and_wait" in deck.screen()
    deck.keys("h")
    parked = beats(db, "parked")
    assert parked["incarnation"] == incarnation, "parked in place"
    gone(pid)
    back = row(db, job)
    assert (back["status"], back["is_priority"]) == ("queued", True)
    assert (back["failures"], back["watchdog_retries"], back["losses"]) == (0, 0, 0)
    assert history(db, job)[0]["exit_code"] == 79
    assert status(db, behind) == "queued"
    deck.wait_for("PARKED")

    deck.keys("r")
    eventually(lambda: len((tmp_path / "job").read_text().split()) == 2, what="the job that was given back runs first")
    assert beats(db, "running")["incarnation"] == incarnation, "resumed without a restart"
    deck.wait_for("1/1")
    (tmp_path / "job.go").touch()
    assert [ended(db, each)["attempt"] for each in (job, behind)] == [2, 1]
    deck.keys("q")
    assert deck.wait_gone() == 0
    stop(lane)
