"""`python -m benchmarks [names] [--size quick|full] [--json FILE]`: run, print the table, write the JSON.

Exit code 1 when a bound does not hold. Needs the environment that `make bench` builds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.harness import BenchError, Report
from benchmarks.processes import stop_all
from benchmarks.server import temporary_server

NAMES = (
    "drain",
    "enqueue",
    "wake",
    "claim",
    "graph",
    "recovery",
    "deck",
    "hour",
    "recorder",
    "sqlite",
    "history",
    "snapshot_held",
    "restart",
    "api",
)
RESULT = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Flight Deck beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--size", choices=("quick", "full"), default="full", help="quick: does it work at all")
    parser.add_argument(
        "--json", type=Path, default=RESULT, help="where the numbers go (benchmarks/results/latest.json)"
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)} (known: {', '.join(NAMES)})")
    signal.signal(signal.SIGTERM, interrupt)
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
    report, whole = Report(), True
    try:
        with temporary_server() as server:
            report.machine = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **server.machine()}
            if os.getloadavg()[0] > 0.5:
                report.notes.append("The machine was not quiet when this run began: take the ratios with salt.")
            for name in asked.names or NAMES:
                whole = run_one(name, asked.size, server, report) and whole
    except KeyboardInterrupt:
        whole = False
        report.notes.append("Interrupted: what had been measured until then.")
    finally:
        stop_all()
    print("\n" + report.table())
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    print(f"\nwritten: {asked.json}")
    for check in report.failed:
        print(f"does not hold: {check.group}: {check.name} is {check.value:.2f}, wanted {check.bound}")
    return 1 if report.failed or not whole else 0


def run_one(name: str, size: str, server: object, report: Report) -> bool:
    """One benchmark; its failure is a note and does not stop the others. Whether it was measured."""
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"[{name} {time.monotonic() - begun:5.0f} s] {line}", file=sys.stderr, flush=True)

    try:
        module = importlib.import_module(f"benchmarks.{name}")
        module.measure(server, report, module.QUICK if size == "quick" else module.Sizes(), say)
        say("done")
        return True
    except BenchError as error:
        report.notes.append(f"{name}: not measured: {error}")
        say(str(error))
    except Exception as error:
        traceback.print_exc()
        report.notes.append(f"{name}: not measured: {type(error).__name__}: {error}")
    return False


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
