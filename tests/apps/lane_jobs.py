"""Tasks and nodes for the lane's tests: fast, slow, stubborn, noisy, dying ones."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine import registry


def noop() -> None:
    """Nothing."""


def echo(**inputs: Any) -> dict[str, Any]:
    return inputs


def nap(seconds: float = 0.05) -> dict[str, Any]:
    time.sleep(seconds)
    return {"slept": seconds}


def fail(text: str = "told to") -> None:
    raise ValueError(text)


def touch_and_wait(path: str, seconds: float = 600.0, pid_file: bool = True) -> dict[str, Any]:
    """Say where it runs, then wait for the file ``.go`` beside it (or for ``seconds``), and leave ``.done`` there."""
    file = Path(path)
    with file.open("a") as out:
        out.write(f"{os.getpid()}\n")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if file.with_suffix(".go").exists():
            file.with_suffix(".done").touch()
            return {"pid": os.getpid()}
        time.sleep(0.02)
    return {"pid": os.getpid()}


def heed_cancel(ctx: Any, path: str) -> dict[str, Any]:
    Path(path).write_text(str(os.getpid()))
    while not ctx.cancelled():
        ctx.beat()
        time.sleep(0.02)
    return {"heeded": True}


def hold_gil(seconds: float = 5.0) -> dict[str, Any]:
    """Hold the GIL in one long C call: no other thread of this process runs meanwhile."""
    began = time.monotonic()
    ctypes_sleep(seconds)
    return {"held": time.monotonic() - began}


def ctypes_sleep(seconds: float) -> None:
    import ctypes

    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))  # PyDLL keeps the GIL


def family_tree(path: str, seconds: float = 600.0) -> None:
    """Start a child, one that leaves the session, and an orphan that does too; write their pids; wait."""
    sleeper = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    child = subprocess.Popen(sleeper)
    leaver = subprocess.Popen(sleeper, start_new_session=True)
    middle = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import subprocess; print(subprocess.Popen({sleeper!r}, start_new_session=True,"
            " stdout=subprocess.DEVNULL).pid)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    file = Path(path)
    file.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid} {leaver.pid} {middle.stdout.strip()}")
    file.with_suffix(".tmp").rename(file)
    time.sleep(seconds)


def scatter(path: str, seconds: float = 600.0) -> None:
    """Start what hides best: an orphan in a session of its own with nothing in its environment and no descriptors, and
    one that never called exec. Our pid and theirs go to ``path``."""
    bare = [sys.executable, "-I", "-S", "-c", _BARE, path + ".bare", str(seconds)]
    subprocess.run(bare, env={}, start_new_session=True, check=True, close_fds=True, cwd="/")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(path + ".forked").write_text(str(os.getpid()))
            time.sleep(seconds)
        os._exit(0)
    found = [Path(path + name) for name in (".bare", ".forked")]
    while not all(file.exists() and file.read_text() for file in found):
        time.sleep(0.01)
    file = Path(path)
    file.with_suffix(".tmp").write_text(" ".join([str(os.getpid()), *(file.read_text() for file in found)]))
    file.with_suffix(".tmp").rename(file)
    time.sleep(seconds)


_BARE = """
import os, sys, time
os.closerange(0, 256)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + "~", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + "~", sys.argv[1])
        time.sleep(float(sys.argv[2]))
    os._exit(0)
os.wait()
"""


def hop(path: str, seconds: float = 600.0) -> None:
    """Leave a process that is another one every few milliseconds, each an orphan in a session of its own."""
    Path(path).write_text(str(os.getpid()))
    if os.fork() == 0:
        os.environ.clear()
        end = time.monotonic() + 30.0
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
            Path(path + ".hop").write_text(str(os.getpid()))
            time.sleep(0.005)
        os._exit(0)
    time.sleep(seconds)


def complete_itself(ctx: Any, path: str, then: str = "return") -> dict[str, Any]:
    """Commit a row of its own and the completion together, go on for a while, then end in some way."""
    import psycopg

    import engine
    from engine import config

    url = config.db_url()
    made: Any = (
        sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        if url.startswith("sqlite")
        else psycopg.connect(url)
    )
    with contextlib.closing(made) as conn:
        with conn:
            conn.execute(f"insert into effects (job_id) values ({ctx.job.id})")
            if then == "wait first":
                touch_and_wait(path)
            engine.complete_job(conn, ctx.job, {"by": "itself"})
    if then != "wait first":
        touch_and_wait(path)
    if then == "raise":
        raise ValueError("after all was done")
    return {"by": "the lane"}


def who_am_i() -> dict[str, Any]:
    return {"pid": os.getpid()}


def spam(ctx: Any, seconds: float = 1.0) -> dict[str, Any]:
    """Beat and report as fast as it goes; the last report is what counts."""
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        ctx.beat()
        ctx.progress(count % 100, f"{count}")
        count += 1
    ctx.progress(77.0, "the last word")
    time.sleep(3.0)
    return {"calls": count}


def die(how: str = "kill") -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> dict[str, Any]:
    """Die in the first attempt, succeed in the second."""
    file = Path(path)
    if not file.exists():
        file.write_text("died")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"survived": True}


def talk(text: str) -> None:
    print(text)
    os.write(2, b"and on stderr\n")


def chatter(ctx: Any, path: str) -> None:
    """Print in every way, more than is kept; then as touch_and_wait, and a last line."""
    print("x" * 200_000)
    os.write(1, b"no text: \xff\x00\n")
    ctx.log.info("said by its logger")
    subprocess.run(["/bin/sh", "-c", "echo said by a child"], check=True)
    touch_and_wait(path)
    print("the last line")


def speak_and_hold_gil(seconds: float) -> None:
    print("before")
    ctypes_sleep(seconds)


def report(ctx: Any) -> dict[str, Any]:
    ctx.progress(12.5, "an eighth")
    ctx.log.info("said by the job's logger")
    time.sleep(0.6)
    (ctx.out_dir / "made.txt").write_text("x")
    return {
        "id": ctx.job.id,
        "attempt": ctx.job.attempt,
        "queue": ctx.job.queue,
        "out": str(ctx.out_dir),
        "family": ctx.job.family.name,
    }


def bad_result(kind: str) -> Any:
    return {
        "list": [1, 2],
        "object": {"x": object()},
        "nan": {"x": float("nan")},
        "nul": {"x": "a\x00b"},
        "big": {"x": "x" * 2**21},
    }[kind]


def leave() -> None:
    sys.exit(3)


async def later(seconds: float = 0.01) -> dict[str, Any]:
    import asyncio

    await asyncio.sleep(seconds)
    return {"async": True}


def with_model(ctx: Any) -> dict[str, Any]:
    return {"model": ctx.model, "pid": os.getpid()}


def visible_device() -> dict[str, Any]:
    return {"cuda": os.environ.get("CUDA_VISIBLE_DEVICES")}


for fn in (
    noop, echo, nap, fail, touch_and_wait, heed_cancel, hold_gil, family_tree, scatter, hop,
    complete_itself, who_am_i, spam, die, die_once, talk, chatter,
    speak_and_hold_gil, report, bad_result,
    leave, later, with_model, visible_device,
):  # fmt: skip
    registry.register_ingest_task(fn.__name__, fn)
    registry.register_node(fn.__name__, fn)
registry.register_ingest_task("nap_briefly", nap, budget_s=0.5)

LOADS = Path(os.environ.get("LANE_JOBS_LOADS", os.devnull))


def _loader(name: str) -> Any:
    def load() -> str:
        with LOADS.open("a") as out:
            out.write(f"load {name}\n")
        return f"<{name}>"

    return load


def _unload(value: str) -> None:
    with LOADS.open("a") as out:
        out.write(f"unload {value}\n")


for name in ("alpha", "beta"):
    registry.register_model(name, _loader(name), _unload, est_vram_gb=1.0)
