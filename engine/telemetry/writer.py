"""The recorder's SQL: samples in, old ones out, the box's own row. One round trip per sample on PostgreSQL."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine import config
from engine.errors import Conflict
from engine.queue import services
from engine.store import Db
from engine.store.locks import new_incarnation
from engine.telemetry.sample import (
    BOX_FOLDED,
    BOX_METRICS,
    BOX_RANGED,
    GPU_METRICS,
    GPU_RANGED,
    BoxFacts,
    BoxSample,
    tidy,
)
from engine.telemetry.together import fold

PRUNE_ROWS = 500  # of one delete: short, so that nobody waits for it
PRUNE_ROUNDS = 40  # of one call; what is left then goes a minute later

SAMPLE_COLUMNS = (
    "box",
    "at",
    "tier",
    *BOX_METRICS,
    *(f"{m}_{end}" for m in BOX_RANGED for end in ("min", "max")),
    "sensors",
)
BOX_COLUMNS = (*SAMPLE_COLUMNS, *BOX_FOLDED)  # and what its GPUs did together (together.py)
GPU_COLUMNS = ("box", "at", "tier", *GPU_METRICS, *(f"{m}_{end}" for m in GPU_RANGED for end in ("min", "max")))


@dataclass(frozen=True)
class Recorder:
    """The recorder's own line in ``services``."""

    box: str
    incarnation: str
    pid: int
    version: str

    @property
    def service(self) -> services.Service:
        return services.Service("recorder", self.box, self.incarnation)

    def row(self, error: str | None) -> dict[str, Any]:
        """The parameters of the row."""
        return services.row(self.service, {}, error) | {"pid": self.pid, "version": self.version}


def this_process(box: str) -> Recorder:
    """The line of a recorder that begins now, in this process."""
    try:
        version = importlib.metadata.version("flightdeck")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return Recorder(box, new_incarnation(), os.getpid(), version)


def _list(columns: Sequence[str]) -> str:
    return ", ".join(columns)


def _upsert(key: Sequence[str], columns: Sequence[str]) -> str:
    """The same row again (a retry after a lost answer, a minute rolled up anew) replaces the row."""
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in key)
    return f"on conflict ({_list(key)}) do update set {changes}"


_BOX_KEY, _GPU_KEY = ("box", "tier", "at"), ("box", "tier", "at", "gpu_index")
# Parameters that cannot be inferred from a column carry their type: the statement is prepared on the server.
_WRITE_POSTGRES = f"""
with boxed as (
  insert into flight_recorder ({_list(BOX_COLUMNS)})
  select {_list(BOX_COLUMNS)} from jsonb_populate_recordset(null::flight_recorder, {{boxes}}::text::jsonb)
  {_upsert(_BOX_KEY, BOX_COLUMNS)}
), carded as (
  insert into flight_recorder_gpu ({_list(GPU_COLUMNS)})
  select {_list(GPU_COLUMNS)} from jsonb_populate_recordset(null::flight_recorder_gpu, {{gpus}}::text::jsonb)
  {_upsert(_GPU_KEY, GPU_COLUMNS)}
), touched as (
  update boxes set updated_at = now() where box = {{box}}
), alive as (
  {services.ROW}
), told as (
  select pg_notify('hw_metrics', {{payload}}::text) where {{payload}}::text is not null
)
select clock_timestamp() as now_at, (select count(*) from told) as told
"""


def _insert_sqlite(table: str, key: Sequence[str], columns: Sequence[str]) -> str:
    values = ", ".join(f"{{{column}}}" for column in columns)
    return f"insert into {table} ({_list(columns)}) values ({values}) {_upsert(key, columns)}"


_BOX_SQLITE = _insert_sqlite("flight_recorder", _BOX_KEY, BOX_COLUMNS)
_GPU_SQLITE = _insert_sqlite("flight_recorder_gpu", _GPU_KEY, GPU_COLUMNS)


def box_row(sample: BoxSample) -> dict[str, Any]:
    """The row of ``flight_recorder`` by column, nulls left out."""
    row = {name: value for name, value in sample.values().items() if value is not None}
    if sample.sensors:
        row["sensors"] = tidy(sample.sensors)
    head = {"box": sample.box, "at": _iso(sample.at), "tier": sample.tier}
    return head | row | _range(sample.low, sample.high) | fold(sample.gpus)


def gpu_rows(sample: BoxSample) -> list[dict[str, Any]]:
    """The rows of ``flight_recorder_gpu`` by column, nulls left out."""
    head = {"box": sample.box, "at": _iso(sample.at), "tier": sample.tier}
    by_index = {gpu.gpu_index: gpu for gpu in sample.gpus}
    return [
        head | {name: value for name, value in gpu.values().items() if value is not None} | _range(gpu.low, gpu.high)
        for gpu in by_index.values()
    ]


def write(
    db: Db, recorder: Recorder, samples: Sequence[BoxSample], *, payload: str | None, last_error: str | None
) -> datetime:
    """Write samples of both tiers, tell ``payload`` on hw_metrics, sign the box and the recorder as alive.

    All or nothing. Returns the database's clock. Raises StoreUnavailable, ReadOnlyStore.
    """
    samples = list({(sample.tier, sample.at): sample for sample in samples}.values())  # a clock that was set back
    boxes = [box_row(sample) for sample in samples]
    gpus = [row for sample in samples for row in gpu_rows(sample)]
    sign = recorder.row(last_error[:500] if last_error else None)
    if db.kind == "postgresql":
        now = db.value(_WRITE_POSTGRES, boxes=_json(boxes), gpus=_json(gpus), payload=payload, **sign)
        assert isinstance(now, datetime)
        return now
    with db.transaction():
        if boxes:
            db.run_many(_BOX_SQLITE, [dict.fromkeys(BOX_COLUMNS) | row for row in boxes])
        if gpus:
            db.run_many(_GPU_SQLITE, [dict.fromkeys(GPU_COLUMNS) | row for row in gpus])
        db.run("update boxes set updated_at = {now} where box = {box}", box=recorder.box)
        db.run(services.ROW, **sign)
    return datetime.now(UTC)  # the file's clock is this machine's


def claim_name(db: Db, facts: BoxFacts, replace: bool = False) -> None:
    """Make sure that this machine may speak for the box; with ``replace`` it takes the name over.

    Raises Conflict, naming both machines, when another one has the name.
    """
    known = db.one("select machine_id, cpu_model, updated_at from boxes where box = {box}", box=facts.box)
    if known is None or replace or not known["machine_id"] or not facts.machine_id:
        return
    if known["machine_id"] != facts.machine_id:
        raise Conflict(
            f"box {facts.box!r} is machine {known['machine_id']} ({known['cpu_model'] or 'unknown processor'}, last seen "
            f"{known['updated_at']:%Y-%m-%d %H:%M:%S} UTC); this is machine {facts.machine_id} "
            f"({facts.cpu_model or 'unknown processor'}): give it a name of its own (--box), or use --replace if it took "
            "the other one's place"
        )


def write_facts(db: Db, facts: BoxFacts) -> None:
    """Write the row of ``boxes``. A description that somebody gave stays unless the source has one."""
    db.run(
        "insert into boxes (box, machine_id, description, cpu_model, cores, mem_mb, gpus, driver, kernel, simulated, "
        "updated_at) values ({box}, {machine_id}, {description}, {cpu_model}, {cores}, {mem_mb}, {gpus}{json}, {driver}, "
        "{kernel}, {simulated}, {now}) on conflict (box) do update set "
        "machine_id = excluded.machine_id, description = coalesce(excluded.description, boxes.description), "
        "cpu_model = excluded.cpu_model, cores = excluded.cores, mem_mb = excluded.mem_mb, gpus = excluded.gpus, "
        "driver = excluded.driver, kernel = excluded.kernel, simulated = excluded.simulated, "
        "updated_at = excluded.updated_at",
        box=facts.box,
        machine_id=facts.machine_id,
        description=facts.description,
        cpu_model=facts.cpu_model,
        cores=facts.cores,
        mem_mb=facts.mem_mb,
        gpus=json.dumps([gpu.values() for gpu in facts.gpus]),
        driver=facts.driver,
        kernel=facts.kernel,
        simulated=facts.simulated,
    )


def sign_on(db: Db, recorder: Recorder, last_error: str | None = None) -> None:
    """Enter ``services``; the lines of earlier recorders of this box go, for the box's lock is ours."""
    with db.transaction():
        db.run(
            "delete from services where kind = 'recorder' and box = {box} and incarnation <> {incarnation}",
            box=recorder.box,
            incarnation=recorder.incarnation,
        )
        db.run(services.ROW, **recorder.row(last_error))


def sign_off(db: Db, recorder: Recorder) -> None:
    """Leave ``services``: an orderly end."""
    services.leave(db, recorder.service)


def kept_seconds() -> tuple[float, float]:
    """How long details and minutes are kept, by the configuration; 0: for ever."""
    return float(config.get("retention_detail_hours")) * 3600.0, float(config.get("retention_minutes_days")) * 86400.0


def prune(db: Db, box: str, detail_s: float, minutes_s: float) -> int:
    """Delete what is too old, in small batches; the number of rows. 0 seconds: nothing of that tier.

    A box deletes its own details, after an hour. Those of a box whose recorder is gone are the evidence of its last
    hour and stay as long as minutes do; whoever comes by then deletes them.
    """
    deleted = 0
    for table in ("flight_recorder", "flight_recorder_gpu"):
        if detail_s:
            deleted += _prune(db, table, "box = {box} and tier = 'detail'", box, detail_s)
        for tier in ("minute", "detail") if minutes_s and detail_s else ("minute",) if minutes_s else ():
            deleted += _prune(
                db, table, f"tier = '{tier}'", box, max(minutes_s, detail_s) if tier == "detail" else minutes_s
            )
    return deleted


def _prune(db: Db, table: str, which: str, box: str, keep_s: float) -> int:
    row = "ctid" if db.kind == "postgresql" else "rowid"
    found = (
        f"select {row} from {table} where {which} and at < {{before[keep_s]}} order by at limit {{n}} {{skip_locked}}"
    )
    old = f"= any(array({found}))" if db.kind == "postgresql" else f"in ({found})"
    params: dict[str, Any] = {"keep_s": keep_s, "n": PRUNE_ROWS} | ({"box": box} if "{box}" in which else {})
    deleted = 0
    for _ in range(PRUNE_ROUNDS):
        count = db.run(f"delete from {table} where {row} {old}", **params)
        deleted += count
        if count < PRUNE_ROWS:
            break
    return deleted


def _range(low: Mapping[str, float], high: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}_min": round(value, 3) for name, value in low.items()} | {
        f"{name}_max": round(value, 3) for name, value in high.items()
    }


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
