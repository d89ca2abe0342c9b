"""Nobody who decides about work asks the clock on the wall: the database's clock and the monotonic one are all there is."""

from __future__ import annotations

import ast
from pathlib import Path

from engine.store import Store
from tests.chaos.fleet import SITE
from tests.lane.fleet import QUICK, add, beats, ended, history, pid_in, row, start_lane
from tests.support import ROOT, Processes, command, eventually

DECIDES = ("queue", "lane", "orchestrator", "dag", "store")
# The age of files on this box, against the time stamps that this box gave them; when a sweep last ran, for people.
JUDGES_NOBODY = {"engine/lane/logs.py", "engine/lane/outdirs.py", "engine/orchestrator/sweeps.py"}
ASKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today")}


def test_a_clock_of_a_worker_is_read_where_leases_are_judged() -> None:
    """Q23: no call of time.time() or datetime.now() in what claims, renews, ends or sweeps."""
    found = []
    for folder in DECIDES:
        for path in sorted((ROOT / "engine" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if named and (node.value.id, node.attr) in ASKS:
                    found.append((str(path.relative_to(ROOT)), node.lineno))
    assert [where for where in found if where[0] not in JUDGES_NOBODY] == []


def test_workers_ten_minutes_off_lose_live_work_or_keep_dead_work(
    store: Store, processes: Processes, tmp_path: Path
) -> None:
    """Q23: one lane is ten minutes early, one late, the leader early; a job that lasts is left alone, a dead lane's is not."""
    late, early = ({"CHAOS_SKEW_S": skew, "PYTHONPATH": f"{SITE}:{ROOT}"} for skew in ("-600", "600"))
    head = command("queue-orchestrator", "--db", store.url, "--box", "head")
    processes.spawn(head, env={**QUICK, **early})
    doomed = start_lane(processes, store, box="early", env=early)
    with store.connect("test") as db:
        beats(db, "running", box="early")
        job = add(db, "touch_and_wait", {"path": str(tmp_path / "began")})
        pid_in(tmp_path / "began")
        start_lane(processes, store, box="late", env=late)
        beats(db, "running", box="late")
        for n in range(20):
            assert ended(db, add(db, "echo", {"n": n}))["claimed_box"] == "late"
        before = row(db, job)["lease_expires_at"]
        eventually(lambda: row(db, job)["lease_expires_at"] > before, what="a renewal")
        assert (row(db, job)["status"], history(db, job)) == ("running", [])
        left = (row(db, job)["lease_expires_at"] - db.now()).total_seconds()
        assert 500 < left <= 600
        doomed.kill()
        eventually(lambda: row(db, job)["claimed_box"] == "late", what="the dead lane's job goes to the other")
        (tmp_path / "began.go").touch()
        assert ended(db, job)["attempt"] == 2
