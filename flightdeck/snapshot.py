"""``flightdeck snapshot``: one frame of the fleet, or of a recording, on standard output, as text, JSON or SVG."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import config
from engine.errors import BadInput, ConfigError, EngineError
from engine.snapshot import Look, facts_rows, fleet_snapshot, jsonable, view
from engine.store import Db, Store, open_store
from engine.store.migrate import check_schema, ensure_schema
from engine.telemetry import history
from flightdeck.reader import Canned

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
    page: str = "fleet",
    recording: str | None = None,
    at: str | None = None,
) -> None:
    """The command: print one frame. ``form``: text, json or svg; ``page``: fleet, jobs, throttle, events, queues, box:NAME
    or job:ID; ``recording``: a file to look at in place of the database, ``at`` a time of it (None: its end).
    Raises BadInput, ConfigError, StoreError.
    """
    name, arguments = which_page(page)
    if recording is not None:
        seen = recorded(Path(recording), at)
    elif at is not None:
        raise BadInput("--at wants a --recording; the database has the present alone")
    else:
        seen = looked_up(project or str(config.get("project")) or None, form)
    if name == "box" and form != "json":
        boxes = sorted(row["box"] for update in seen.updates for row in (update.view or {}).get("boxes", ()))
        if arguments["box"] not in boxes:
            raise BadInput(f"--page: no box is called {arguments['box']!r}; there are: {', '.join(boxes) or 'none'}")
    if form == "json":
        text = json.dumps(seen.plain, indent=2)
    else:
        from flightdeck.frame import render_frame
        from flightdeck.term.session import no_color

        frame = render_frame(
            seen.updates,
            (width, height),
            theme or "dark",
            ascii,
            page=name,
            arguments=arguments,
            answers=seen.answers,
            project=project or str(config.get("project")) or None,
            store_name=seen.name,
            plain=no_color(),
        )
        text = frame.svg if form == "svg" else frame.text
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


@dataclass
class Seen:
    """What there is to draw: updates as the feed brings them, who answers the pages; ``plain``: as JSON."""

    name: str
    updates: Sequence[FeedUpdate]
    answers: Canned
    plain: Mapping[str, Any] | None = None


def looked_up(project: str | None, form: str) -> Seen:
    """The database as it is now."""
    from flightdeck.launch import store_name

    store = open_to_look()
    name = store_name(config.db_url())
    with store.connect("snapshot", read_only=True) as db:
        check_schema(store, db)
        look = look_at_this_box(db)
        if form == "json":
            return Seen(name, (), Canned(), fleet_snapshot(project, db, look))
        return Seen(name, [still(store, db, project, look)], Asked(store))


def recorded(path: Path, at: str | None) -> Seen:
    """A recording at one time of it. Raises BadInput."""
    from flightdeck.recording import Recording
    from flightdeck.replay import BASE, place

    recording = Recording.load(path)
    t = recording.duration_s if at is None else place(at, recording)
    updates = recording.still(t, BASE)
    return Seen(path.name, updates, Canned(recording.answers(t)), updates[0].view)


def which_page(text: str) -> tuple[str, dict[str, str]]:
    """A page and what it is about. Raises BadInput."""
    from flightdeck.screens.pages import PAGES

    name, colon, about = text.partition(":")
    word = {"box": "box", "job": "job_id"}.get(name)
    if name not in PAGES or (word is not None) != bool(colon and about):
        raise BadInput(f"--page: {text!r} is none of {', '.join(page for page in PAGES)}; box:NAME and job:ID name one")
    return name, {} if word is None else {word: about}


class Asked(Canned):
    """Answers the page's questions from the database, each when it is asked."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._db: Db | None = None  # of the thread that draws

    def look_up(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
        from flightdeck.questions import QUESTIONS

        try:
            if self._db is None:
                self._db = self._store.connect("snapshot", read_only=True)
            return QUESTIONS[name](self._db, **arguments), ""
        except EngineError as error:
            return None, str(error)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()


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
