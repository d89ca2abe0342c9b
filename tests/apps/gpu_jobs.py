"""Nodes for a lane with GPUs: each writes down its pid and its device, then lives, or does not, until told to stop.

What they wait for is looked for without reading anything, so that waiting is no life.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from engine import context
from engine.registry import node

context.BEAT_EVERY_S = 0.05


def _begin(path: str) -> Path:
    file = Path(path)
    with file.open("a") as out:
        out.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES', '?')} {os.getpid()}\n")
    return file.with_suffix(".go")


def _until(go: Path, pause_s: float = 0.05) -> bool:
    """False once it may end."""
    time.sleep(pause_s)
    return not go.exists()


@node("wedge")
def wedge(path: str) -> dict[str, Any]:
    """Waits for something that never comes."""
    go = _begin(path)
    while _until(go):
        pass
    return {"let": "go"}


@node("spin")
def spin(path: str) -> None:
    """The same, as a CUDA wait does it."""
    go = _begin(path)
    while not go.exists():
        pass


@node("beating")
def beating(path: str, ctx: Any) -> None:
    go = _begin(path)
    while _until(go):
        ctx.beat()


@node("beat_once")
def beat_once(path: str, ctx: Any) -> None:
    go = _begin(path)
    ctx.beat()
    while _until(go):
        pass


@node("loading")
def loading(path: str) -> None:
    """Its memory goes up to 256 MiB and down again, over and over."""
    go = _begin(path)
    parts: list[bytes] = []
    while _until(go):
        parts.append(b"\1" * (16 << 20))
        if len(parts) == 16:
            parts.clear()


@node("downloading")
def downloading(path: str, port: int) -> None:
    """Nothing of it reaches the disk."""
    go = _begin(path)
    with socket.create_connection(("127.0.0.1", port)) as source:
        while not go.exists() and source.recv(1 << 16):
            pass
