"""The end of what jobs printed, in the database: the newest 64 KiB of each job's latest attempt that printed anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import NotFound
from engine.queue.family import find
from engine.queue.workers import Worker
from engine.store import Db

TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Tail:
    """What one attempt printed last. ``text``: see :func:`cut`; ``size``: bytes that it has printed in all."""

    job_id: int
    fencing_token: int
    attempt: int
    text: str
    size: int


def cut(data: bytes, *, whole: bool = True, over: bool = True, limit: int = TAIL_BYTES) -> str:
    """The newest ``limit`` bytes of ``data`` as text that a row can hold.

    Cut between characters; bytes that are no UTF-8 become U+FFFD, NULs are left out. ``whole`` False: ``data`` begins
    in the middle of a log, perhaps of a character; ``over`` False: more follows, perhaps the rest of one.
    """
    data = data.replace(b"\0", b"")
    if not whole or len(data) > limit:
        data = _whole_from(data[-limit:])
    if not over:
        data = data[: len(data) - _unfinished(data)]
    encoded = data.decode("utf-8", "replace").encode()
    return encoded[-limit:].decode("utf-8", "ignore")  # it may begin inside a character again


def _whole_from(data: bytes) -> bytes:
    """Without the rest of a character at the beginning, three bytes at most."""
    for skip in range(min(4, len(data))):
        if data[skip] & 0xC0 != 0x80:
            return data[skip:]
    return data if len(data) > 3 else b""


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if length > back else 0
    return 0


def write_tails(db: Db, worker: Worker, tails: Sequence[Tail]) -> None:
    """Store these, one statement for all. A tail whose job has been claimed again since is left out, without a word."""
    if not tails:
        return
    where = (
        "j.fencing_token = t.token and (j.claimed_by = {owner} or j.claimed_by is null) order by j.id "
        "on conflict (family, job_id) do update set attempt = excluded.attempt, tail = excluded.tail, "
        "bytes = excluded.bytes, updated_at = excluded.updated_at where excluded.attempt >= job_logs.attempt"
    )
    into = (
        "insert into job_logs (family, job_id, attempt, tail, bytes, project, updated_at) "
        "select {family}, j.id, t.attempt, t.tail, t.size, j.project, {now} from "
    )
    given: dict[str, Any] = {"family": worker.family.name, "owner": worker.owner}
    latest = {tail.job_id: tail for tail in tails}.values()  # a row can be written once by a statement
    if db.kind == "postgresql":
        db.run(
            f"{into} unnest({{ids}}::bigint[], {{tokens}}::bigint[], {{attempts}}::int[], {{tails}}::text[], "
            "{sizes}::bigint[]) as t(id, token, attempt, tail, size) "
            f"join {worker.family.table} j on j.id = t.id where {where}",
            **given,
            ids=[tail.job_id for tail in latest],
            tokens=[tail.fencing_token for tail in latest],
            attempts=[tail.attempt for tail in latest],
            tails=[tail.text for tail in latest],
            sizes=[tail.size for tail in latest],
        )
        return
    each = "json_extract(value, '$[%d]') as %s"
    names = ", ".join(each % pair for pair in enumerate(("id", "token", "attempt", "tail", "size")))
    db.run(
        f"{into} (select {names} from json_each({{tails}})) t "
        f"join {worker.family.table} j on j.id = t.id where {where}",
        **given,
        tails=json.dumps(
            [[tail.job_id, tail.fencing_token, tail.attempt, tail.text, tail.size] for tail in latest],
            ensure_ascii=False,
        ),
    )


def read_tail(db: Db, job_id: int | str) -> str:
    """The end of what a job has printed; empty when it has printed nothing. Raises NotFound for no such job."""
    found = find(db, job_id)
    if found is None:
        raise NotFound(f"no job {job_id}")
    family, row = found
    text = db.value(
        "select tail from job_logs where family = {family} and job_id = {id}", family=family.name, id=row["id"]
    )
    return str(text or "")
