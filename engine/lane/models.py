"""The model that an executor keeps warm: loaded when a job asks for it, kept across jobs, swapped, dropped when idle."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from typing import Any

from engine import registry
from engine.errors import UnknownTask

log = logging.getLogger("engine.lane.models")
IDLE_UNLOAD_S = 60.0


class WarmModel:
    """At most one loaded model. ``changed`` is told the id after every load (None: after an unload)."""

    def __init__(self, changed: Callable[[str | None], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._clock = clock
        self.id: str | None = None
        self.value: Any = None
        self._used_at = clock()

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
            self.value = model.loader()
            self.id = wanted
            log.info("model %s loaded in %.1f s", wanted, self._clock() - began)
            self._changed(wanted)
        self._used_at = self._clock()
        return self.value

    def used(self) -> None:
        """A job that used it has just ended."""
        self._used_at = self._clock()

    def unload(self) -> None:
        """Drop what is loaded. An unloader that fails is logged; the model counts as dropped."""
        if self.id is None:
            return
        model, value = registry.models.get(self.id), self.value
        log.info("model %s unloaded", self.id)
        self.id = self.value = None
        if model is not None and model.unloader is not None:
            try:
                model.unloader(value)
            except Exception:
                log.exception("the unloader of model %s failed", model.id)
        del value
        gc.collect()
        self._changed(None)

    def idle_for(self) -> float | None:
        """Seconds until the idle unload is due (0 = now), or None when nothing is loaded."""
        return None if self.id is None else max(0.0, self._used_at + IDLE_UNLOAD_S - self._clock())
