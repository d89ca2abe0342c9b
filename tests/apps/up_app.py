"""A host app for ``flightdeck up``."""

from __future__ import annotations

import engine

engine.register_ingest_task("quick", lambda: {"done": True})
