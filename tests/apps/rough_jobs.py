"""Tasks that treat the process they run in as if it were theirs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from engine.lane import protocol
from engine.registry import ingest_task


@ingest_task("who")
def who() -> dict[str, Any]:
    return {"pid": os.getpid()}


@ingest_task("fork_and")
def fork_and(how: str) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        if how == "raise":
            raise ValueError("said by the child")
        return {"said": "the child"}
    os.waitpid(pid, 0)
    return {"said": "the parent"}


@ingest_task("close_stdout")
def close_stdout() -> None:
    sys.stdout.close()
    sys.stderr.close()


@ingest_task("close_descriptors")
def close_descriptors() -> None:
    for fd in range(3):
        os.close(fd)


@ingest_task("replace_stdout")
def replace_stdout() -> None:
    sys.stdout = io.StringIO()
    sys.stdout.close()


@ingest_task("delete_stdout")
def delete_stdout() -> None:
    del sys.stdout, sys.stderr


@ingest_task("remove_directory")
def remove_directory() -> None:
    path = tempfile.mkdtemp()
    os.chdir(path)
    os.rmdir(path)


@ingest_task("set_alarm")
def set_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.15)


@ingest_task("speak_and_look")
def speak_and_look() -> dict[str, Any]:
    print("out")
    print("err", file=sys.stderr)
    assert min(os.dup(0), os.dup(1)) > 2
    time.sleep(0.2)
    return {"cwd": os.getcwd()}


@ingest_task("replace_json")
def replace_json() -> None:
    json.loads = None  # type: ignore[assignment]


@ingest_task("break_the_loop")
def break_the_loop() -> dict[str, Any]:
    """What the loop uses next is gone, and a thread that is no daemon goes on."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    protocol.Frame = None  # type: ignore[assignment,misc]
    return who()


@ingest_task("daemonise")
def daemonise(path: str) -> None:
    """A daemon by the book: orphaned, in a session of its own, with a clean environment."""
    script = 'sleep 600 & echo $! > "$0.new"; mv "$0.new" "$0"'
    subprocess.run(["/bin/sh", "-c", script, path], env={"PATH": "/usr/bin:/bin"}, start_new_session=True, check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    assert Path(path).exists()
