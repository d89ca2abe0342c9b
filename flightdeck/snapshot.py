"""``flightdeck snapshot``: one frame of the fleet on standard output, as text, JSON or SVG."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from engine import config
from engine.errors import ConfigError
from engine.snapshot import Look, facts_rows, fleet_snapshot, jsonable, view
from engine.store import Db, Store, open_store
from engine.store.migrate import check_schema, ensure_schema
from engine.telemetry import history

if TYPE_CHECKING:
    from engine.feed import FeedUpdate

FRESH_S = 10.0


def main(
    *,
    form: str = "text",
    width: int = 120,
    height: int = 40,
    project: str | None = None,
    ascii: bool = False,
    theme: str | None = None,
) -> None:
    """The command: print one frame. ``form``: text, json or svg. Raises ConfigError, StoreError."""
    store = open_to_look()
    project = project or str(config.get("project")) or None
    with store.connect("snapshot", read_only=True) as db:
        check_schema(store, db)
        look = look_at_this_box(db)
        if form == "json":
            text = json.dumps(fleet_snapshot(project, db, look), indent=2)
        else:
            update = still(store, db, project, look)
    if form != "json":
        from flightdeck.frame import render_frame
        from flightdeck.launch import store_name
        from flightdeck.term.session import no_color

        frame = render_frame(
            update,
            (width, height),
            theme or "dark",
            ascii,
            project=project,
            store_name=store_name(config.db_url()),
            plain=no_color(),
        )
        text = frame.svg if form == "svg" else frame.text
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


def open_to_look() -> Store:
    """The configured store, ready to be read. A look makes no file: a name of SQLite that is not there is a mistake, but
    for the user's own default database. Raises ConfigError, StoreError."""
    store = open_store()
    if config.get("db_url") and store.path is not None and not store.path.exists():
        raise ConfigError(f"there is no database at {store.path}")
    if store.owned:
        ensure_schema(store, seconds=0)
    return store


def look_at_this_box(db: Db) -> Look | None:
    """A real look at this box, if no recorder reports for it; takes about a second."""
    name = config.box_name()
    newest = history.latest(db, [name]).get(name)
    now = db.now()
    if newest is not None and now - newest.at <= timedelta(seconds=FRESH_S):
        return None
    from engine.telemetry.probes.source import RealSource

    source = RealSource(name)
    try:
        return source.facts(), replace(source.sample(2.0), at=now)
    finally:
        source.close()


def still(store: Store, db: Db, project: str | None, look: Look | None) -> FeedUpdate:
    """What the feed would bring first: everything there is, at once."""
    from engine.feed import FeedUpdate

    facts = history.box_facts(db)
    last = {box: sample.at for box, sample in history.latest(db).items()}
    hour = history.hour(db)
    if look is not None:
        known, sample = look
        facts[known.box], last[known.box] = known, sample.at
        hour.setdefault(known.box, []).append(sample)
    found, at = view(db, project, facts_rows(facts), last)
    return FeedUpdate(
        state="live",
        at=at,
        mono=time.monotonic(),
        listening=store.kind == "postgresql",
        view=jsonable(found),
        history=hour,
    )
