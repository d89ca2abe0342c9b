"""The outputs that a decision reads, fetched as they are asked for: a merge that is too large is found out early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.store import Db

BATCH_BYTES = 4 * 1024 * 1024  # of JSON text per statement, but for a single output that is larger
CACHE_BYTES = 16 * 1024 * 1024


class Outputs(Mapping[str, Any]):
    """Outputs of completed nodes of one run by node id. Small ones come at once, large ones when they are asked for,
    together with those that are likely to be asked for next; never more than a few MiB are held."""

    def __init__(self, db: Db, run_id: int, node_ids: Sequence[str]) -> None:
        """``node_ids``: in the order in which they will be asked for; those without a completed row have no output."""
        self._db, self._run_id = db, run_id
        self._sizes: dict[str, int] = {}
        self._held: dict[str, Any] = {}
        self._held_bytes = 0
        if not node_ids:
            return
        length = "octet_length(output::text)" if db.kind == "postgresql" else "length(cast(output as blob))"
        rows = db.all(
            f"select node_id, coalesce({length}, 0) as size, case when {length} <= {{small}} then output end as output "
            "from workflow_node_jobs where run_id = {run_id} and status = 'completed' and node_id {any[node_ids]}",
            run_id=run_id,
            node_ids=list(node_ids),
            small=BATCH_BYTES // len(node_ids),
        )
        found = {row["node_id"]: row for row in rows}
        for node_id in node_ids:
            if (row := found.get(node_id)) is not None:
                self._sizes[node_id] = row["size"]
                if row["size"] <= BATCH_BYTES // len(node_ids):
                    self._held[node_id] = row["output"]
                    self._held_bytes += row["size"]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, node_id: str) -> Any:
        if node_id not in self._held:
            self._fetch(node_id)
        return self._held[node_id]

    def _fetch(self, node_id: str) -> None:
        """Bring one output, and the next ones of which as many fit into a batch. Raises KeyError."""
        room = BATCH_BYTES - self._sizes[node_id]
        batch = [node_id]
        following = iter(self._sizes)
        while next(following) != node_id:
            pass
        for other in following:
            if other in self._held:
                continue
            room -= self._sizes[other]
            if room < 0:
                break
            batch.append(other)
        coming = sum(self._sizes[each] for each in batch)
        if self._held_bytes + coming > CACHE_BYTES:
            self._held.clear()
            self._held_bytes = 0
        for row in self._db.all(
            "select node_id, output from workflow_node_jobs where run_id = {run_id} and node_id {any[batch]}",
            run_id=self._run_id,
            batch=batch,
        ):
            self._held[row["node_id"]] = row["output"]
        self._held_bytes += coming
