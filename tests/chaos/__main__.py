"""`python -m tests.chaos [--jobs N] [--lanes N] [--store postgresql|sqlite] [--seed N] [--out DIR] [--plant fence] [--http]`

Runs a real fleet under kills, freezes, database restarts, wrong clocks, cancellations and replays, and judges what its
database says afterwards. Writes DIR/verdict.json, DIR/journal.jsonl and DIR/logs. Exit codes: 0 all is as it must be,
1 something is not, 2 wrong use.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tests.chaos.options import Options
from tests.chaos.plant import BUGS, plant
from tests.chaos.run import run, write
from tests.chaos.server import WrongUse
from tests.support import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="A fleet under blows, and a verdict.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos")
    parser.add_argument("--plant", choices=BUGS, help="break the engine on purpose: the run must then exit 1")
    parser.add_argument(
        "--http", action="store_true", help="the users come through queue-broker-web, which is killed, too"
    )
    asked = parser.parse_args()
    if not 100 <= asked.jobs <= 1_000_000 or not 2 <= asked.lanes <= 64:
        parser.error("--jobs from 100, --lanes from 2 to 64")
    url = os.environ.pop("FLIGHTDECK_DB_URL", None)
    for name in [name for name in os.environ if name.startswith("FLIGHTDECK_")]:
        del os.environ[name]
    store = "sqlite" if url and url.startswith("sqlite:") else asked.store
    options = Options(asked.out, asked.jobs, asked.lanes, store, asked.seed, url, asked.plant, asked.http)
    os.environ.update(options.environment)
    signal.signal(signal.SIGTERM, interrupt)
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"[chaos {time.monotonic() - begun:4.0f} s] {line}", flush=True)

    try:
        if options.plant:
            plant(options.plant)
        report = run(options, say)
    except WrongUse as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("chaos: interrupted; no verdict", file=sys.stderr)
        return 1
    path = options.out / "verdict.json"
    write(report, path)
    summary(report)
    print(f"written: {path}")
    return 1 if report["breaches"] else 0


def summary(report: dict[str, object]) -> None:
    for name, value in report.items():
        if name in ("breaches", "options"):
            continue
        print(f"  {name}: {value}")
    breaches = report["breaches"]
    assert isinstance(breaches, list)
    for breach in breaches[:20]:
        print(f"  BREACH {breach['rule']}: {breach['text']}")
    if len(breaches) > 20:
        print(f"  and {len(breaches) - 20} more")


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
