"""What tests share: waiting for events, and processes that never outlive their test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent


def eventually(look: Callable[[], T], timeout_s: float = 60.0, what: str = "") -> T:
    """Poll until ``look`` returns something truthy; fails with its last answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or look}; last answer {seen!r}"
        time.sleep(0.01)


def command(name: str, *args: str) -> list[str]:
    """A console script of ours, run from this checkout by this interpreter."""
    module = {
        "queue-orchestrator": "engine.commands.orchestrator",
        "queue-claim-worker": "engine.commands.claim_worker",
        "queue-recorder": "engine.commands.recorder",
        "queue-scheduler": "engine.commands.scheduler",
        "queue-worker-control": "engine.commands.worker_control",
        "queue-broker": "engine.commands.broker",
        "queue-broker-web": "engine.commands.broker_web",
        "queue-worker-supervisor": "engine.commands.supervisor",
        "flightdeck": "flightdeck.cli",
    }[name]
    return [sys.executable, "-c", f"from {module} import main; main()", *args]


class Processes:
    """Starts processes in groups of their own and ends every one of them, by pid."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.started: list[subprocess.Popen[bytes]] = []

    def spawn(
        self, args: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.Popen[bytes]:
        log = (self.log_dir / f"process-{len(self.started)}.log").open("wb")
        process = subprocess.Popen(
            list(args),
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=kwargs.pop("cwd", ROOT),
            stdin=subprocess.DEVNULL,
            stdout=kwargs.pop("stdout", log),
            stderr=kwargs.pop("stderr", subprocess.STDOUT),
            start_new_session=True,
            **kwargs,
        )
        log.close()
        self.started.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has written so far."""
        return (self.log_dir / f"process-{self.started.index(process)}.log").read_text(errors="replace")

    def end_all(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.started:
            process.wait(timeout=20)


class RefusingServer:
    """A port that takes every connection and drops it at once, as a server that starts up or shuts down may."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://me:s3cret@127.0.0.1:{self._listener.getsockname()[1]}/fleet?sslmode=disable"
        self.tries: list[float] = []  # monotonic times
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.tries.append(time.monotonic())
            client.close()

    def __enter__(self) -> RefusingServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
