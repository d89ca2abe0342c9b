"""The lane's event sink: the app's hook in a process of its own, because a lane runs no user code.

The lane learns from its executors whether the app sets the hook. If so it starts this module as a child that imports the
app and calls the hook for each line of its standard input; it ends with that, or with the lane.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from engine import config, registry
from engine.lane import tree
from engine.queue.sink import Sink
from engine.store import Store

log = logging.getLogger("engine.lane.sink")

RESTART_S = 5.0  # a child that died is not started more often
LEAVE_S = 5.0  # at the end, what waits may take so long


class LaneSink:
    """Takes note of events until it is known that nobody wants them; passes them on as soon as somebody does."""

    def __init__(self, store: Store, environment: Mapping[str, str]) -> None:
        self._environment = environment
        hook = config.hook("event_sink")
        self._sink = (Sink(store, hook) if hook else Sink(store, self._to_child, prepare=self._start)).listen()
        self._child: subprocess.Popen[bytes] | None = None
        self._next_start = 0.0

    @property
    def pid(self) -> int:
        """The child's, which is no orphan of an executor; 0: there is none."""
        return self._child.pid if self._child is not None else 0

    def told(self, wanted: bool) -> None:
        """Whether the app has the hook; every executor that starts tells it."""
        if wanted or config.hook("event_sink"):
            self._sink.begin()
        else:
            self._sink.forget()

    def _to_child(self, event: dict[str, Any]) -> None:
        """Hand one event to the child; waits where the hook is slow."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.write(json.dumps(event, default=str).encode() + b"\n")
        self._child.stdin.flush()

    def _start(self) -> None:
        """On the sink's thread: the parent-death signal follows the thread that starts a process."""
        time.sleep(max(0.0, self._next_start - time.monotonic()))
        self._next_start = time.monotonic() + RESTART_S
        self._child = subprocess.Popen(
            [sys.executable, "-m", "engine.lane.sink"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **self._environment, "CUDA_VISIBLE_DEVICES": ""},  # it must not take a GPU
        )

    def end(self) -> None:
        """Pass on what waits, within bounds, and let the child leave."""
        self._sink.end(LEAVE_S)
        if self._child is None:
            return
        with contextlib.suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()
        try:
            self._child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(LEAVE_S)


def main() -> None:
    tree.die_with_parent()
    logging.basicConfig(
        stream=sys.stderr,
        level=str(config.get("log_level")).upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    registry.load_app()
    hook = config.hook("event_sink")
    failed = False
    for line in sys.stdin.buffer:
        try:
            if hook is not None:
                hook(json.loads(line))
        except Exception as error:
            if not failed:
                failed = True
                said = " ".join(str(error).split())[:300]
                log.error("hook event_sink failed: %s: %s (told once)", type(error).__name__, said)


if __name__ == "__main__":
    main()
