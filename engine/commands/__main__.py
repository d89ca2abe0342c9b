"""``python -m engine.commands queue-recorder ...``: a console script without its launcher, wherever Python finds us."""

from __future__ import annotations

import importlib
import sys

MODULES = {
    "queue-broker": "broker",
    "queue-broker-web": "broker_web",
    "queue-claim-worker": "claim_worker",
    "queue-orchestrator": "orchestrator",
    "queue-recorder": "recorder",
    "queue-scheduler": "scheduler",
    "queue-worker-control": "worker_control",
    "queue-worker-supervisor": "supervisor",
}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in MODULES:
        print(f"usage: python -m engine.commands {{{','.join(MODULES)}}} ...", file=sys.stderr)
        sys.exit(2)
    sys.argv = [name, *sys.argv[2:]]
    importlib.import_module(f"engine.commands.{MODULES[name]}").main()


if __name__ == "__main__":
    main()
