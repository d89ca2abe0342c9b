"""What the recorder costs: processor, memory and round trips with its probe process, and its rows on the disk of the server.

Two runs at 2 s: the sensors of this machine, and eight made-up NVIDIA cards on top of them (the bindings are those of the
tests, whose cost counts as the recorder's). Then a day of eight cards through the real writer with made-up times, minute by
minute: 30 samples, the minute's roll-up, the recorder's own deletions, and a vacuum whenever the server's autovacuum, which
has no day's time here, would have begun one.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg

from benchmarks import ours
from benchmarks.harness import Report
from benchmarks.processes import Child, until
from benchmarks.server import Server

CADENCE_S = 2.0
CARDS = 8
TABLES = ("flight_recorder", "flight_recorder_gpu")


@dataclass(frozen=True)
class Sizes:
    seconds: float = 120.0
    settle_s: float = 15.0
    hours: int = 24


QUICK = Sizes(seconds=15.0, settle_s=6.0, hours=1)


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    template = ours.template(server)
    with made_up_cards(server.work / "cards") as env:
        for name, extra in (("this machine", {}), (f"{CARDS} cards", env)):
            with server.scratch("recorder", template) as url:
                run(server, report, name, url, extra, sizes, say)
    with server.scratch("day", template) as url:
        day(report, url, sizes.hours, say)


def run(
    server: Server,
    report: Report,
    name: str,
    url: str,
    env: Mapping[str, str],
    sizes: Sizes,
    say: Callable[[str], None],
) -> None:
    """The recorder as a process, looked at from outside."""
    entry = "from engine.commands.recorder import main; main()"
    args = [sys.executable, "-c", entry, "--db", url, "--box", "bench", "--log-level", "warning"]
    recorder = Child(args, server.log("recorder"), env)
    try:
        with ours.connect(url) as connection:
            count = "select count(*) from flight_recorder where tier = 'detail'"
            until(lambda: ours.value(connection, count), 60, "first sample", child=recorder)
            time.sleep(sizes.settle_s)
            both = [psutil.Process(recorder.pid), *psutil.Process(recorder.pid).children()]
            if len(both) != 2:
                raise RuntimeError(f"the recorder has {len(both) - 1} children, not one")
            trips = asked(server, url)
            used, samples, begun = [cpu_s(p) for p in both], ours.value(connection, count), time.monotonic()
            time.sleep(sizes.seconds)
            took = time.monotonic() - begun
            percent = [(cpu_s(p) - before) / took * 100 for p, before in zip(both, used, strict=True)]
            memory = [pss_mb(p.pid) for p in both]
            samples = ours.value(connection, count) - samples
            own_questions = 3  # of this benchmark, on that database
            trips = asked(server, url) - trips - own_questions
    finally:
        recorder.stop()
    note = f"recorder {percent[0]:.2f}, probes {percent[1]:.2f}, over {took:.0f} s"
    report.line("recorder", f"{name}: processor, both processes", "% of a core", [sum(percent)], note)
    report.line(
        "recorder", f"{name}: PSS, both", "MB", [sum(memory)], f"recorder {memory[0]:.1f}, probes {memory[1]:.1f}"
    )
    report.line("recorder", f"{name}: transactions a sample", "", [trips / max(1, samples)], f"{trips} for {samples}")
    report.check("recorder", f"{name}: processor, % of a core", sum(percent), at_most=1.0)
    report.check("recorder", f"{name}: PSS, MB", sum(memory), at_most=70.0)
    say(
        f"{name}: {sum(percent):.2f} % of a core ({note}), PSS {sum(memory):.1f} MB, {trips} transactions for {samples} samples"
    )


def asked(server: Server, url: str) -> int:
    """Transactions that the database has ended, counted by the server; told about a second late."""
    time.sleep(2.0)
    database = url.split("?", 1)[0].rsplit("/", 1)[1]
    row = server._admin.execute("select xact_commit from pg_stat_database where datname = %s", [database]).fetchone()
    return int(row[0]) if row else 0


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def pss_mb(pid: int) -> float:
    """Its own memory and its share of what others use, too."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no PSS of {pid}")


class made_up_cards:
    """What a recorder's environment needs to see eight cards beside this machine's own /proc and /sys."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> dict[str, str]:
        from tests.fakes.gpus import Gpus, card

        self._directory.mkdir()
        gpus = Gpus(self._directory, *(card(n, util=90 + n, temp_c=60 + n) for n in range(CARDS)))
        proc = gpus.root / "proc"
        (proc / "meminfo").unlink()
        for name in ("stat", "meminfo", "loadavg", "cpuinfo", "net", "diskstats", "sys", "self", "mounts"):
            (proc / name).symlink_to(f"/proc/{name}")
        for name in ("sys", "etc", "dev"):
            (gpus.root / name).symlink_to(f"/{name}")
        return gpus.env

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def day(report: Report, url: str, hours: int, say: Callable[[str], None]) -> None:
    """Write ``hours`` of eight cards, and weigh them."""
    from engine.store import Store
    from engine.telemetry import writer
    from engine.telemetry.rollup import roll_up

    rng, begun = random.Random(4), time.monotonic()
    with Store(url).connect("day", timeout_s=60.0) as db, psycopg.connect(url, autocommit=True) as raw:
        end = db.now().replace(second=0, microsecond=0)
        me = writer.Recorder("bench", "0" * 16, 1, "1")
        samples, largest = 0, 0
        for minute in range(hours * 60):
            at = end - timedelta(minutes=hours * 60 - minute)
            batch = [made_up_sample(at + timedelta(seconds=CADENCE_S * n), rng) for n in range(int(60 / CADENCE_S))]
            writer.write(db, me, batch, payload=None, last_error=None)
            writer.write(db, me, [roll_up(batch)], payload=None, last_error=None)
            samples += len(batch)
            passed = (db.now() - at).total_seconds() - 60.0  # as if that minute had just ended
            detail_s, minutes_s = writer.kept_seconds()
            writer.prune(db, "bench", passed + detail_s, passed + minutes_s)
            vacuum_if_due(raw)
            if minute % 60 == 59:
                largest = max(largest, sum(size(raw, table) for table in TABLES))
        by_table = {table: size(raw, table) for table in TABLES}
        rows = {table: ours.value(raw, f"select count(*) from {table}") for table in TABLES}
    total = sum(by_table.values()) / 1e6
    note = ", ".join(f"{table} {by_table[table] / 1e6:.1f} MB in {rows[table]:,} rows" for table in TABLES)
    report.line("recorder", f"{hours} h of {CARDS} cards, tables with their indexes", "MB", [total], note)
    report.line("recorder", "the same at its largest", "MB", [largest / 1e6])
    report.check("recorder", f"{hours} h of {CARDS} cards, MB", max(total, largest / 1e6), at_most=150.0)
    say(f"{hours} h of {CARDS} cards, {samples:,} samples in {time.monotonic() - begun:.0f} s: {total:.1f} MB ({note})")


def size(raw: psycopg.Connection[Any], table: str) -> int:
    return int(ours.value(raw, "select pg_total_relation_size(%s)", table))


def vacuum_if_due(raw: psycopg.Connection[Any]) -> None:
    """What autovacuum decides once a minute, by the tables' own settings."""
    for table in TABLES:
        row = raw.execute(
            "select s.n_dead_tup > coalesce(o.threshold, 50) + coalesce(o.scale, 0.2) * greatest(c.reltuples, 0) "
            "from pg_stat_user_tables s join pg_class c on c.oid = s.relid cross join lateral (select "
            "max(v) filter (where k = 'autovacuum_vacuum_threshold') as threshold, "
            "max(v) filter (where k = 'autovacuum_vacuum_scale_factor') as scale "
            "from (select split_part(x, '=', 1) as k, split_part(x, '=', 2)::float8 as v from unnest(c.reloptions) x) y) o "
            "where s.relname = %s",
            [table],
        ).fetchone()
        if row and row[0]:
            raw.execute(f"vacuum analyze {table}")


def made_up_sample(at: datetime, rng: random.Random) -> Any:
    """A busy box: eight cards that throttle now and then, two dozen named sensors."""
    from engine.telemetry.sample import BoxSample, GpuSample
    from engine.telemetry.throttle import worst

    gpus = tuple(
        GpuSample(
            n, f"GPU-{n:08d}-1111-2222-3333-444444444444", util_pct=rng.uniform(80, 100), mem_used_mb=rng.uniform(6e4, 8e4),
            mem_total_mb=81559.0, temp_c=rng.uniform(60, 85), mem_temp_c=rng.uniform(70, 95), power_w=rng.uniform(500, 700),
            power_inst_w=rng.uniform(400, 720), power_limit_w=700.0, sm_mhz=rng.uniform(1400, 1980), pcie_gen=5, pcie_width=16,
            pstate=0, throttle_mask=rng.choice((0, 4, 0x24)), throttle_source="counter", sw_power_ms=rng.uniform(0, 2000),
            hw_brake_ms=0.0, sw_thermal_ms=rng.uniform(0, 300), hw_thermal_ms=0.0, sync_boost_ms=0.0, brakes=0, ecc_uncorrected=0,
        )
        for n in range(CARDS)
    )  # fmt: skip
    sensors = {
        "zones": {f"coretemp Core {n}": rng.uniform(40, 90) for n in range(24)},
        "fans": {f"nct6798 fan{n}": rng.uniform(600, 2400) for n in range(8)},
        "net": {f"enp{n}s0": {"rx_bps": rng.uniform(0, 1e8), "tx_bps": rng.uniform(0, 1e8)} for n in range(4)},
        "disks": {f"nvme{n}n1": {"read_bps": rng.uniform(0, 1e8), "write_bps": rng.uniform(0, 1e8)} for n in range(4)},
        "gpus": {str(n): {"mem_mhz": 2619, "link_mbps": rng.uniform(0, 6e4), "health": "ok"} for n in range(CARDS)},
    }
    return BoxSample(
        "bench", at, cpu_pct=rng.uniform(0, 100), core_max_pct=100.0, load1=rng.uniform(0, 64), cpu_mhz=rng.uniform(2000, 3800),
        cpu_temp_c=rng.uniform(50, 90), mem_used_mb=rng.uniform(1e5, 4e5), mem_total_mb=515_000.0, swap_used_mb=0.0,
        zone_max_c=rng.uniform(60, 90), zone_max_name="coretemp Package id 0", fan_max_rpm=rng.uniform(1500, 2400),
        net_rx_bps=rng.uniform(0, 1e8), net_tx_bps=rng.uniform(0, 1e8), disk_read_bps=rng.uniform(0, 1e8),
        disk_write_bps=rng.uniform(0, 1e8), disk_used_pct=61.2, cpu_throttle_ms=0.0, throttle_index=30.0,
        power_ms=worst(g.sw_power_ms for g in gpus), thermal_ms=worst(g.sw_thermal_ms for g in gpus), brakes=0,
        sensors=sensors, gpus=gpus,
    )  # fmt: skip
