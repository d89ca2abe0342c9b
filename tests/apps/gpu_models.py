"""Models without a GPU: known sizes and load times, from the environment; what happens is appended to a file.

``GPU_MODELS``: JSON {id: {"gib", "load_s", "fail": "load"|"unload"}}. ``GPU_MODELS_LOG``: lines of
``time word detail project device pid``, where time is the monotonic clock, the same for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from engine import registry

MODELS: dict[str, dict[str, Any]] = json.loads(os.environ.get("GPU_MODELS", "{}"))


def say(word: str, detail: object = "-") -> None:
    project = os.environ.get("FLIGHTDECK_PROJECT") or "-"
    device = os.environ.get("CUDA_VISIBLE_DEVICES") or "-"
    line = f"{time.monotonic():.6f} {word} {detail} {project} {device} {os.getpid()}\n"
    file = os.open(os.environ.get("GPU_MODELS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    os.close(file)


def infer(ctx: Any, seconds: float = 0.0, go: str = "") -> dict[str, Any]:
    """Use the model for ``seconds``, or until the file ``go`` is there."""
    say("begin", ctx.job.required_model or "-")
    until = time.monotonic() + (seconds or 120.0)
    while time.monotonic() < until and (seconds or (go and not Path(go).exists())):
        time.sleep(0.01)
    say("end", ctx.job.required_model or "-")
    return {"model": ctx.model, "device": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid()}


registry.register_node("infer", infer)


def _register(id: str, about: dict[str, Any]) -> None:
    def load() -> str:
        say("loading", id)
        time.sleep(float(about.get("load_s", 0.0)))
        if about.get("fail") == "load":
            raise MemoryError(f"out of memory for {id}")
        say("load", id)
        return f"<{id}>"

    def unload(value: str) -> None:
        if about.get("fail") == "unload":
            raise RuntimeError(f"{id} does not let go")
        say("unload", id)

    registry.register_model(id, load, unload, est_vram_gb=float(about.get("gib", 1.0)))


for _id, _about in MODELS.items():
    _register(_id, _about)
