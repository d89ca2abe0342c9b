"""The host app of the demo: nodes, ingest tasks and models that mostly sleep, and what each asks of its box.

Lanes import it (``--app flightdeck.demo.jobs``). The weights in EFFECTS move the simulated sensors while a job runs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import register_schedule
from engine.registry import register_ingest_task, register_model, register_node

BEAT_S = 2.0
GIB = 1024.0
MB = 1_000_000.0


@dataclass(frozen=True)
class Effect:
    """What one running job asks of its box."""

    cores: float = 0.0
    gpu: float = 0.0
    vram_mb: float = 0.0
    mem_mb: float = 0.0
    net_rx_bps: float = 0.0
    net_tx_bps: float = 0.0
    disk_bps: float = 0.0


EFFECTS: Mapping[str, Effect] = {
    "storyboard": Effect(cores=1.5, mem_mb=1.2 * GIB),
    "simulate": Effect(cores=7.5, mem_mb=5.5 * GIB, disk_bps=14 * MB),
    "render": Effect(cores=2.0, gpu=0.98, vram_mb=21 * GIB, mem_mb=6 * GIB, disk_bps=9 * MB),
    "upscale": Effect(cores=1.0, gpu=0.86, vram_mb=9 * GIB, mem_mb=3 * GIB, disk_bps=22 * MB),
    "compose": Effect(cores=4.0, mem_mb=4 * GIB, disk_bps=40 * MB),
    "fetch": Effect(cores=0.5, net_rx_bps=9 * MB, disk_bps=9 * MB),
    "transcribe": Effect(cores=1.5, gpu=0.93, vram_mb=11 * GIB, mem_mb=2.5 * GIB),
    "diarize": Effect(cores=6.0, mem_mb=3 * GIB),
    "summarize": Effect(cores=1.0, gpu=0.99, vram_mb=19 * GIB, mem_mb=2 * GIB),
    "publish": Effect(cores=0.5, net_tx_bps=6 * MB),
    "import_catalog": Effect(cores=1.0, mem_mb=0.8 * GIB, net_rx_bps=3 * MB, disk_bps=6 * MB),
    "thumbnail": Effect(cores=1.0, mem_mb=0.2 * GIB),
}


def _work(ctx: Any, seconds: float, steps: tuple[str, ...] = (), crash: bool = False) -> None:
    """Sleep ``seconds``, telling how far it is; ``crash``: the process dies half-way, at the first attempt only."""
    began = time.monotonic()
    while (gone := time.monotonic() - began) < seconds:
        share = gone / seconds
        ctx.progress(100.0 * share, steps[min(len(steps) - 1, int(share * len(steps)))] if steps else None)
        if ctx.cancelled():
            return
        if crash and share > 0.4 and ctx.job.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as an out-of-memory killer would
        time.sleep(min(BEAT_S, max(0.05, seconds - gone)))
    ctx.progress(100.0, None)


def storyboard(scene: str, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds)
    return {"scene": scene, "shots": 4}


def simulate(scene: str, part: int, seconds: float, ctx: Any, crash: bool = False) -> dict[str, Any]:
    _work(ctx, seconds, ("cloth", "smoke", "water"), crash)
    return {"part": part, "frames": int(seconds * 6)}


def render(frames: Any, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds, tuple(f"frame {n}/240" for n in range(24, 241, 24)))
    return {"frames": 240}


def upscale(frames: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds, ("tiles", "blend"))
    return {"frames": frames}


def compose(frames: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds)
    return {"file": f"{frames}.mov"}


def fetch(episode: str, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds)
    return {"episode": episode, "minutes": 48}


def transcribe(minutes: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds, tuple(f"minute {n}" for n in range(6, minutes + 1, 6)) or ("all",))
    return {"words": minutes * 140}


def diarize(minutes: int, seconds: float, ctx: Any, crash: bool = False) -> dict[str, Any]:
    _work(ctx, seconds, ("voices", "turns"), crash)
    return {"speakers": 3}


def summarize(words: int, speakers: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds, ("outline", "draft"))
    return {"words": words // 40, "speakers": speakers}


def publish(words: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds)
    return {"published": words}


def import_catalog(supplier: str, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds, ("download", "parse", "match", "load"))
    return {"supplier": supplier, "rows": int(seconds * 900)}


def thumbnail(picture: int, seconds: float, ctx: Any) -> dict[str, Any]:
    _work(ctx, seconds)
    return {"picture": picture}


def _load_for(seconds: float) -> Any:
    def load() -> dict[str, float]:
        time.sleep(seconds)
        return {"loaded_in_s": seconds}

    return load


for _fn in (storyboard, simulate, render, upscale, compose, fetch, transcribe, diarize, summarize, publish):
    register_node(_fn.__name__, _fn)
register_ingest_task("import_catalog", import_catalog, max_attempts=2)
register_ingest_task("thumbnail", thumbnail)
# What a fleet does by the clock: a price list on every full minute, spread; prints of the day, in local time.
register_schedule(
    "price_list", "* * * * *", task_name="import_catalog", queue="imports", jitter_s=20.0,
    args={"supplier": "larch", "seconds": 6},
)  # fmt: skip
register_schedule(
    "contact_sheet", "30 2 * * *", tz="Europe/Amsterdam", task_name="thumbnail", queue="thumbnails",
    args={"picture": 0, "seconds": 5},
)  # fmt: skip
register_model("aurora-xl", _load_for(3.0), est_vram_gb=21)
register_model("upscaler-4x", _load_for(1.5), est_vram_gb=9)
register_model("lyra-large", _load_for(2.0), est_vram_gb=11)
register_model("quill-14b", _load_for(3.5), est_vram_gb=19)
