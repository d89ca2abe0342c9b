"""An orchestrator and lanes as processes that run graphs, for the scenarios."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.dag.runs import submit_run
from engine.store import Db, Store
from tests.dag.steps import chain, run_row, statuses
from tests.support import Processes, command, eventually


class Fleet:
    """Real processes on one store, and the file in which nodes write down that they ran."""

    def __init__(self, store: Store, db: Db, processes: Processes, directory: Path) -> None:
        self.store, self.db, self.processes, self.directory = store, db, processes, directory
        self.notes = directory / "notes"

    def orchestrator(self) -> subprocess.Popen[bytes]:
        return self.processes.spawn(
            command("queue-orchestrator", "--db", self.store.url, "--box", "head"),
            env={"FLIGHTDECK_LEADER_UP_SECONDS": "1"},
        )

    def lane(
        self, queue: str, box: str, slots: int = 2, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return self.processes.spawn(
            [
                *command("queue-claim-worker", "--db", self.store.url, "--queue", queue, "--box", box),
                *("--slots", str(slots), "--app", "tests.apps.graph_nodes"),
            ],
            env=env,
        )

    def node(self, node_id: str, depends_on: tuple[str, ...] = (), held: bool = False, **fields: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = {"path": str(self.notes), "name": node_id}
        inputs |= {f"from_{other}": {"$from": f"{other}.name"} for other in depends_on}
        if held:
            inputs["wait_for"] = str(self.gate(node_id))
        return {"id": node_id, "node": "note", "depends_on": list(depends_on), "inputs": inputs, **fields}

    def gate(self, node_id: str) -> Path:
        return self.directory / f"go-{node_id}"

    def outbox(self, run_id: int) -> Counter[tuple[str, str]]:
        """The events of a run by node and kind, once all are dealt with. A node '' stands for a sweep that had to help."""
        open_events = "select count(*) from workflow_dispatch_events where run_id = {id} and processed_at is null"
        eventually(lambda: self.db.value(open_events, id=run_id) == 0)
        rows = self.db.all("select node_id, kind from workflow_dispatch_events where run_id = {id}", id=run_id)
        return Counter((row["node_id"], row["kind"]) for row in rows)

    def ended(self, run_id: int) -> dict[str, Any]:
        """The run once it is over and its last node has ended."""
        eventually(lambda: run_row(self.db, run_id)["finished_at"])
        return run_row(self.db, run_id)

    def row(self, run_id: int, node_id: str) -> dict[str, Any]:
        found = self.db.one(
            "select * from workflow_node_jobs where run_id = {id} and node_id = {node_id}", id=run_id, node_id=node_id
        )
        assert found is not None
        return found

    def diamond(self, held: str = "") -> int:
        """A submitted diamond; the nodes in ``held`` wait for their gate."""
        return submit_run(
            self.db,
            chain(
                self.node("a", held="a" in held),
                self.node("b", ("a",), held="b" in held),
                self.node("c", ("a",), held="c" in held, gpu=True, model_free=True),
                self.node("d", ("b", "c"), held="d" in held),
                name="diamond",
            ),
        )

    def ran(self) -> Counter[str]:
        """How often each node was started."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return Counter(line.split()[0] for line in lines)

    def status(self, run_id: int, node_id: str) -> str | None:
        return statuses(self.db, run_id).get(node_id)

    def completed(self, run_id: int) -> bool:
        status = run_row(self.db, run_id)["status"]
        assert status in ("queued", "running", "completed"), run_row(self.db, run_id)["error"]
        return bool(status == "completed")
