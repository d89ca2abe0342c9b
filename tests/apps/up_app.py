"""A host app for ``flightdeck up``."""

from __future__ import annotations

import time

import engine

engine.register_ingest_task("quick", lambda: {"done": True})
engine.register_ingest_task("long", lambda: time.sleep(600))
