"""The job API of a real `queue-broker-web` beside a bare FastAPI and psycopg server: same pool, same clients, same database server.

Closed loop: answers per second of `POST /jobs` and `GET /jobs/{id}`. Open loop: posts that are due 200 times a second,
timed from when they were due; ours carry idempotency keys, and afterwards every answered job must be there, once.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import http_clients as http
from benchmarks import ours
from benchmarks.harness import BenchError, Report, alternate, percentile
from benchmarks.processes import Child, script, until
from benchmarks.server import Server

CLIENTS = 4
PAYLOAD = {"steps": 10, "step_delay_seconds": 0.0, "samples": 100}
RATE = 200.0


@dataclass(frozen=True)
class Sizes:
    seconds: float = 10.0
    rounds: int = 5
    open_s: float = 60.0


QUICK = Sizes(seconds=2.0, rounds=1, open_s=3.0)


@dataclass(frozen=True)
class Side:
    """A server that runs: its port, its database, and the table that its posts go to."""

    name: str
    port: int
    url: str
    table: str
    child: Child


def measure(server: Server, report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    sides: list[Side] = []
    try:
        sides = [_ours(server), _bare(server)]
        _closed(sides, report, sizes, say)
        _open(sides, report, sizes, say)
    finally:
        for side in sides:
            side.child.stop()


def _closed(sides: list[Side], report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    request = http.post({"payload": PAYLOAD})
    known = {side.name: http.closed(side.port, lambda n: request, 201, CLIENTS, 1.0)[1].ids[:500] for side in sides}

    def run(side: Side, make: Callable[[int], bytes], wanted: int) -> float:
        rate, answers = http.closed(side.port, make, wanted, CLIENTS, sizes.seconds)
        if answers.odd:
            raise BenchError(f"{side.name}: {len(answers.odd)} odd answers, the first {answers.odd[0]}")
        return rate

    calls: dict[str, Callable[[], Any]] = {}
    for side in sides:
        asks = [http.get(id) for id in known[side.name]]
        calls[f"{side.name} POST /jobs"] = lambda s=side: run(s, lambda n: request, 201)
        calls[f"{side.name} GET /jobs/{{id}}"] = lambda s=side, a=asks: run(s, lambda n: a[n % len(a)], 200)
    found = alternate(calls, sizes.rounds, say)
    lines = {
        name: report.line("api", name, "answers/s", values, f"{CLIENTS} clients") for name, values in found.items()
    }
    for call in ("POST /jobs", "GET /jobs/{id}"):
        report.ratio(lines[f"{sides[0].name} {call}"], lines[f"{sides[1].name} {call}"], at_least=0.7)


def _open(sides: list[Side], report: Report, sizes: Sizes, say: Callable[[str], None]) -> None:
    p99: dict[str, float] = {}
    for side in reversed(sides):
        keyed = side.table == "ingest_jobs"
        with ours.connect(side.url) as connection:
            before = ours.value(connection, f"select count(*) from {side.table}")
            answers = http.paced(
                side.port,
                lambda n, k=keyed: http.post(
                    {"payload": {**PAYLOAD, "samples": 100 + n % 1000}}, f"open-{n}" if k else None
                ),
                201,
                RATE,
                sizes.open_s,
                clients=32,
            )
            rows = ours.value(connection, f"select count(*) from {side.table}") - before
            there = ours.value(
                connection, f"select count(*) from {side.table} where id = any(%s)", [int(id) for id in answers.ids]
            )
        p99[side.name] = percentile(answers.took_s, 99)
        say(
            f"{side.name}: {len(answers.ids):,} of {int(RATE * sizes.open_s):,} posts answered 201, p99 {p99[side.name] * 1e3:.1f} ms"
        )
        report.line(
            "api", f"{side.name}, {RATE:.0f} posts/s, open loop: median", "ms", [percentile(answers.took_s, 50) * 1e3]
        )
        report.line("api", f"{side.name}, {RATE:.0f} posts/s, open loop: p99", "ms", [p99[side.name] * 1e3])
        if keyed:
            report.check("api", "posts without a 201", float(int(RATE * sizes.open_s) - len(answers.ids)), at_most=0.0)
            report.check("api", "answered jobs that are not there", float(len(answers.ids) - there), at_most=0.0)
            report.check("api", "jobs that nobody was answered", float(rows - len(set(answers.ids))), at_most=0.0)
    report.check("api", "p99 / bare, open loop", p99[sides[0].name] / p99[sides[1].name], at_most=5.0)


def _ours(server: Server) -> Side:
    url = ours.template(server)
    port = free_port()
    child = Child(
        [script("queue-broker-web"), "--db", url, "--port", str(port), "--box", "bench"],
        server.log("web"),
        {"FLIGHTDECK_WEB_RATE": "0", "XDG_DATA_HOME": str(server.work)},
    )
    return _up(Side("queue-broker-web", port, url, "ingest_jobs", child))


def _bare(server: Server) -> Side:
    from benchmarks.bare import TABLE

    url = server.create("bare")
    with ours.connect(url) as connection:
        connection.execute(TABLE)
    port = free_port()
    child = Child([sys.executable, "-m", "benchmarks.bare", url, str(port)], server.log("bare"))
    return _up(Side("bare FastAPI + psycopg", port, url, "bare_jobs", child))


def _up(side: Side) -> Side:
    def answers() -> bool:
        try:
            connection = http.Connection(side.port)
        except OSError:
            return False
        connection.close()
        return True

    until(answers, 30, side.name, child=side.child)
    return side


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
