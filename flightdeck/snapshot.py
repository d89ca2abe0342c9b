"""``flightdeck snapshot``: one frame of the fleet on standard output, as text, JSON or SVG."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engine import config
from engine.snapshot import Look, box_facts, facts_row, fleet_snapshot, jsonable, latest_samples, view
from engine.store import Db, Store, open_store
from engine.store.migrate import check_schema, ensure_schema
from engine.telemetry import history

if TYPE_CHECKING:
    from engine.feed import FeedUpdate

FRESH_S = 10.0


def run(form: str, *, width: int = 120, height: int = 40, ascii_only: bool = False) -> None:
    """Print one frame. ``form``: text, json or svg. Raises ConfigError, StoreError."""
    store = open_store()
    if store.owned:
        ensure_schema(store, seconds=0)
    with store.connect("snapshot", read_only=True) as db:
        check_schema(store, db)
        look = look_at_this_box(db)
        project = str(config.get("project")) or None
        if form == "json":
            text = json.dumps(fleet_snapshot(project, db, look), indent=2, ensure_ascii=False)
        else:
            from flightdeck import frame

            update = still(store, db, project, look)
            draw = frame.svg if form == "svg" else frame.text
            text = draw(update, width=width, height=height, ascii_only=ascii_only)
    sys.stdout.write(text.rstrip("\n") + "\n")


def look_at_this_box(db: Db) -> Look | None:
    """A real look at this box, if no recorder reports for it; takes about a second."""
    name = config.box_name()
    newest = latest_samples(db).get(name)
    if newest is not None and db.now() - newest["at"] <= timedelta(seconds=FRESH_S):
        return None
    from engine.telemetry.probes.source import RealSource

    source = RealSource(name)
    try:
        return source.facts(), source.sample(2.0)
    finally:
        source.close()


def still(store: Store, db: Db, project: str | None, look: Look | None) -> FeedUpdate:
    """What the feed would bring first: everything there is, at once."""
    import time

    from engine.feed import FeedUpdate

    facts: dict[str, dict[str, Any]] = box_facts(db)
    last = {box: row["at"] for box, row in latest_samples(db).items()}
    hour = history.hour(db)
    if look is not None:
        known, sample = look
        facts[known.box] = facts_row(known)
        last[known.box] = sample.at
        hour[known.box] = [*hour.get(known.box, []), sample]
    found, at = view(db, project, facts, last)
    return FeedUpdate(
        state="live",
        at=at,
        mono=time.monotonic(),
        listening=store.kind == "postgresql",
        view=jsonable(found),
        history=hour,
    )
