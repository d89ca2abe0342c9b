"""The model that an executor keeps warm: loaded when a job asks for it, kept across jobs, swapped, dropped when idle.

What a failed loader or unloader has left in memory cannot be known: such an executor is ``broken``, tells its lane, and
a fresh one takes its place before anything else is loaded.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from engine import config, registry
from engine.errors import UnknownTask

log = logging.getLogger("engine.lane.models")


class WarmModel:
    """At most one loaded model. ``changed(loaded, loading)`` is told before and after every load, and after unloads.

    ``idle_s``: after so long without a job that uses it, it is due to be dropped (setting ``model_idle_seconds``).
    """

    def __init__(
        self,
        changed: Callable[[str | None, str | None], None],
        clock: Callable[[], float] = time.monotonic,
        idle_s: float | None = None,
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._idle_s = float(config.get("model_idle_seconds")) if idle_s is None else idle_s
        self.id: str | None = None
        self.value: Any = None
        self.broken: str | None = None  # why this process must not load anything any more
        self._used_at = clock()

    def make_room(self, wanted: str) -> bool:
        """Drop what would be in the way of ``wanted``. False: it cannot be dropped, or this process is broken."""
        if self.id is not None and self.id != wanted and wanted in registry.models:
            self.unload()
        return self.broken is None

    def ensure(self, wanted: str) -> Any:
        """The loaded model ``wanted``; what else was loaded goes first. Raises UnknownTask, or what the loader raises."""
        if self.id != wanted:
            model = registry.models.get(wanted)
            if model is None:
                raise UnknownTask(
                    f"model {wanted!r} is not registered (known: {', '.join(sorted(registry.models)) or 'none'})"
                )
            self.unload()
            began = self._clock()
            self._changed(None, wanted)
            try:
                self.value = model.loader()
            except BaseException as error:
                self.broken = f"the loader of model {wanted} failed: {type(error).__name__}: {error}"
                self._changed(None, None)
                raise
            self.id = wanted
            log.info("model %s loaded in %.1f s", wanted, self._clock() - began)
            self._changed(wanted, None)
        self._used_at = self._clock()
        return self.value

    def used(self) -> None:
        """A job that used it has just ended."""
        self._used_at = self._clock()

    def unload(self) -> None:
        """Drop what is loaded. An unloader that fails is logged, and the process is broken."""
        if self.id is None:
            return
        id, model, value = self.id, registry.models.get(self.id), self.value
        self.id = self.value = None
        if model is not None and model.unloader is not None:
            try:
                model.unloader(value)
            except Exception as error:
                log.exception("the unloader of model %s failed", id)
                self.broken = f"the unloader of model {id} failed: {type(error).__name__}: {error}"
        del value
        _free()
        log.info("model %s unloaded", id)
        self._changed(None, None)

    def idle_for(self) -> float | None:
        """Seconds until the idle unload is due (0 = now), or None when nothing is loaded."""
        return None if self.id is None else max(0.0, self._used_at + self._idle_s - self._clock())


def _free() -> None:
    """Give memory back: of Python, and what torch keeps on the device for later (where the app uses it)."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        except Exception:
            log.exception("torch did not empty its cache")
