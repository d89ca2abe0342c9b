"""A cable that is cut between a lane and its database, in a network namespace. Needs root and `ip`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cable
from engine.store import Store
from engine.store.migrate import migrate
from tests.lane.fleet import add, beats, gone, history, pid_in, row, start_orchestrator
from tests.support import Processes, command, eventually


@pytest.mark.timeout(300)
def test_a_cut_cable_moves_the_job_and_the_lane_beyond_it_changes_nothing(processes: Processes, tmp_path: Path) -> None:
    """Scenario 1 without the power cut: the session dies by its own keepalives; the executor beyond ends as 77."""
    if reason := cable.why_not():
        pytest.skip(reason)
    with cable.laid() as wire, cable.tcp_server(wire.near) as url:
        store = Store(url)
        migrate(store)
        start_orchestrator(processes, store)
        far = command(
            "queue-claim-worker", "--queue", "default", "--db", url, "--box", "far", "--app", "benchmarks.app"
        )
        processes.spawn([*wire.prefix, *far])
        with store.connect("test") as db:
            beats(db, "running", box="far")
            job = add(db, "hold", {"path": str(tmp_path / "far")})  # its second attempt ends at once
            pid = pid_in(tmp_path / "far")
            near = command(
                "queue-claim-worker", "--queue", "default", "--db", url, "--box", "near", "--app", "benchmarks.app"
            )
            processes.spawn(near)
            beats(db, "running", box="near")
            wire.cut()
            eventually(lambda: row(db, job)["claimed_box"] == "near", timeout_s=60, what="claimed on this side")
            eventually(lambda: row(db, job)["status"] == "completed", what="done on this side")
            facts = {key: value for key, value in row(db, job).items() if key != "progress_text"}
            wire.mend()
            eventually(lambda: len(history(db, job)) >= 3, timeout_s=60, what="the far lane learns of it")
            gone(pid)
            assert {key: value for key, value in row(db, job).items() if key != "progress_text"} == facts
            told = [(each["event_type"], each["cause"]) for each in history(db, job)]
            assert told[:2] == [("requeued", "lane_lost"), ("completed", None)]
            assert told[2][0] == "lost_claim"
            assert history(db, job)[2]["exit_code"] == 77
        processes.end_all()
