"""The overview's hour of a hundred boxes with eight GPUs each: what the server works for it, and what the reader pays.

Rows lie on the disk as recorders leave them: every box's details of the hour between its minutes. Server time is what
EXPLAIN (ANALYZE) says of every statement that ``history.hour`` runs, planning included, warm; once with SERIALIZE, which
adds writing the rows down for the wire. Then the same for rows of programs that do not write the columns about a box's
GPUs together, and for a refresh, which reads what is new.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil

from benchmarks import ours
from benchmarks.harness import Report, median
from benchmarks.server import Server

BOXES, GPUS = 100, 8
MINUTES = 120  # an hour of them is not asked for
CADENCE_S = 2


@dataclass(frozen=True)
class Sizes:
    minutes_in_detail: int = 60
    rounds: int = 7


QUICK = Sizes(minutes_in_detail=5, rounds=3)

_TIMES = re.compile(r"(?:Planning|Execution) Time: ([\d.]+)")


def fill(db: Any, minutes_in_detail: int, boxes: int = BOXES, gpus: int = GPUS) -> None:
    """The rows of ``boxes``, in order of time. GPU rows of details only where the hour reads them: the last three minutes."""
    from engine.telemetry.sample import BOX_FOLDED, BOX_RANGED, GPU_RANGED
    from engine.telemetry.together import ADDED_UP

    db.run("truncate flight_recorder, flight_recorder_gpu, boxes")
    db.run(
        "insert into boxes (box, cores, gpus) select 'box' || lpad(b::text, 3, '0'), 64, (select jsonb_agg("
        "jsonb_build_object('index', g, 'uuid', 'GPU-' || b || '-' || g, 'name', 'NVIDIA H100', 'power_limit_w', 700)) "
        "from generate_series(0, {gpus}::int - 1) g) from generate_series(1, {boxes}::int) b",
        boxes=boxes,
        gpus=gpus,
    )
    ends = [f"{metric}_{end}" for metric in GPU_RANGED for end in ("min", "max")]
    box_ends = [f"{metric}_{end}" for metric in BOX_RANGED for end in ("min", "max")]
    until = db.now()
    base = until.replace(second=0, microsecond=0)  # the present minute; filling takes longer than one
    steps = [(minute * 60, "minute") for minute in range(-MINUTES, -minutes_in_detail)]
    for minute in range(-minutes_in_detail, 1):
        steps.append((minute * 60, "detail"))
        if minute < 0:
            steps.append((minute * 60, "minute"))
    for begin, tier in steps:
        minute_row = tier == "minute"
        past = "where {base}::timestamptz + make_interval(secs => s) <= {until}"
        span = f"generate_series({begin}, {begin + (0 if minute_row else 58)}, {CADENCE_S}) s"
        where = f"{{base}}::timestamptz + make_interval(secs => s) as at, '{tier}' as tier"
        cards = f"cross join generate_series(0, {gpus - 1}) g" if minute_row or begin >= -180 else ""
        more = (
            (", " + ", ".join(ends), ", " + ", ".join("50 + random() * 40" for _ in ends)) if minute_row else ("", "")
        )
        if cards:
            db.run(
                "insert into flight_recorder_gpu (box, at, tier, gpu_index, gpu_uuid, util_pct, mem_used_mb, mem_total_mb, "
                "temp_c, mem_temp_c, power_w, power_inst_w, power_limit_w, sm_mhz, pcie_gen, pcie_width, pstate, "
                f"throttle_mask, throttle_source, sw_power_ms, hw_brake_ms, sw_thermal_ms, hw_thermal_ms, brakes{more[0]}) "
                f"select 'box' || lpad(b::text, 3, '0'), {where}, g, 'GPU-' || b || '-' || g, 90 + random() * 10, 60000, "
                "81920, 60 + random() * 20, 70, 500 + random() * 200, 600, 700, 1500 + random() * 400, 5, 16, 0, 4, "
                f"'counter', random() * 900, 0, random() * 90, 0, 0{more[1]} from {span} "
                f"cross join generate_series(1, {boxes}) b {cards} {past}",
                base=base,
                until=until,
            )
        ranged = (", " + ", ".join(box_ends), ", " + ", ".join("40 + random() * 40" for _ in box_ends))
        more = ranged if minute_row else (", sensors", ", {sensors}::text::jsonb")
        db.run(
            "insert into flight_recorder (box, at, tier, cpu_pct, core_max_pct, load1, cpu_mhz, cpu_temp_c, mem_used_mb, "
            "mem_total_mb, swap_used_mb, zone_max_c, zone_max_name, net_rx_bps, net_tx_bps, disk_read_bps, disk_write_bps, "
            f"disk_used_pct, cpu_throttle_ms, throttle_index, power_ms, thermal_ms, brakes{more[0]}) "
            f"select 'box' || lpad(b::text, 3, '0'), {where}, random() * 100, 99, 40, 3100, 70 + random() * 9, 60000, 512000, "
            f"0, 72, 'acpitz', 1e6, 1e6, 1e5, 1e5, 40, 0, 30, random() * 900, random() * 90, 0{more[1]} from {span} "
            f"cross join generate_series(1, {boxes}) b {past}",
            base=base,
            until=until,
            **({} if minute_row else {"sensors": '{"zones": {"acpitz": 61.5, "nvme": 48.9}}'}),
        )
    columns = ", ".join(f"{name} = c.{name}" for name in BOX_FOLDED)
    db.run(
        f"update flight_recorder f set {columns} from (select box, tier, at, {ADDED_UP} from flight_recorder_gpu "
        "group by box, tier, at) c where c.box = f.box and c.tier = f.tier and c.at = f.at"
    )
    for table in ("flight_recorder", "flight_recorder_gpu"):
        db.run(f"vacuum analyze {table}")


def statements(db: Any, ask: Callable[[Any], object]) -> list[tuple[str, dict[str, Any]]]:
    """What ``ask`` runs."""
    ran: list[tuple[str, dict[str, Any]]] = []
    original = db.all

    def spy(text: str, /, **params: Any) -> list[dict[str, Any]]:
        ran.append((text, params))
        return original(text, **params)  # type: ignore[no-any-return]

    db.all = spy
    try:
        ask(db)
    finally:
        db.all = original
    return ran


def server_ms(db: Any, ask: Callable[[Any], object], rounds: int, options: str = "analyze, timing off") -> list[float]:
    """Milliseconds of all statements together, per round; the first round warms and does not count."""
    asked = statements(db, ask)
    took = []
    for _ in range(rounds + 1):
        whole = 0.0
        for text, params in asked:
            for row in db.all(f"explain ({options}) {text}", **params):
                if found := _TIMES.search(row["QUERY PLAN"]):
                    whole += float(found[1])
        took.append(whole)
    return took[1:]


def processor_ms(db: Any, ask: Callable[[Any], object], rounds: int) -> float:
    """Milliseconds of a core that the server's process spends on one answer, the wire included: other load does not count."""
    backend = psutil.Process(db.value("select pg_backend_pid()"))
    ask(db)
    before = backend.cpu_times()
    for _ in range(rounds):
        ask(db)
    after = backend.cpu_times()
    return (after.user + after.system - before.user - before.system) / rounds * 1000


def client_ms(db: Any, ask: Callable[[Any], object], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds until the samples are there, and of that this process's own."""
    walls, own = [], []
    for _ in range(rounds):
        begun, used = time.perf_counter(), time.process_time()
        ask(db)
        walls.append((time.perf_counter() - begun) * 1000)
        own.append((time.process_time() - used) * 1000)
    return walls, own


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    from engine.store import Store
    from engine.telemetry import history
    from engine.telemetry.sample import BOX_FOLDED

    with server.scratch("hour", ours.template(server)) as url, Store(url).connect("hour", timeout_s=600.0) as db:
        fill(db, sizes.minutes_in_detail)
        rows = {
            table: db.value(f"select count(*) from {table}") for table in ("flight_recorder", "flight_recorder_gpu")
        }
        say(
            f"{BOXES} boxes with {GPUS} GPUs each: {rows['flight_recorder']:,} and {rows['flight_recorder_gpu']:,} rows"
        )

        def hour(db: Any) -> object:
            return history.hour(db)

        took = server_ms(db, hour, sizes.rounds)
        wire = server_ms(db, hour, sizes.rounds, "analyze, timing off, serialize")
        busy = processor_ms(db, hour, 4 * sizes.rounds)
        walls, own = client_ms(db, hour, sizes.rounds)
        report.line("hour", f"{BOXES} boxes x {GPUS} GPUs, server, EXPLAIN ANALYZE warm", "ms", took)
        report.line("hour", "the same with SERIALIZE", "ms", wire)
        report.line("hour", "the server's processor time for it, with the wire", "ms", [busy])
        report.line("hour", "until the reader has its samples", "ms", walls, f"{median(own):.0f} ms of it its own")
        report.check("hour", "server time, ms", median(took), at_most=100.0)
        say(f"server {median(took):.1f} ms, with the wire {median(wire):.1f} ms; reader {median(walls):.0f} ms")

        since = db.value("select max(at) as last_at from flight_recorder where tier = 'detail'") - timedelta(seconds=6)
        fresh = server_ms(db, lambda db: history.since(db, since), sizes.rounds)
        report.line("hour", "a refresh: the samples of 6 s", "ms", fresh)

        db.run(f"update flight_recorder set {', '.join(f'{name} = null' for name in BOX_FOLDED)}")
        db.run("vacuum full analyze flight_recorder")
        foreign = server_ms(db, hour, sizes.rounds)
        busy = processor_ms(db, hour, 2 * sizes.rounds)
        report.line("hour", "rows of programs that leave the columns about all GPUs out, server", "ms", foreign)
        report.line("hour", "the server's processor time for these, with the wire", "ms", [busy])
        report.check("hour", "server time of foreign rows, ms", median(foreign), at_most=100.0)
        say(f"foreign rows: server {median(foreign):.1f} ms; a refresh {median(fresh):.1f} ms")
