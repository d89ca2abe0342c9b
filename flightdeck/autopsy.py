"""``flightdeck autopsy BOX``: one page about a box's last hour before an instant. Plain text, ASCII but for the data in it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from engine.errors import BadInput
from engine.snapshot import jsonable
from engine.store.migrate import check_schema
from engine.telemetry import history
from engine.telemetry.evidence import Evidence, evidence, slow_at_the_end
from flightdeck.autopsy_page import page
from flightdeck.model.text import ascii_only, clean
from flightdeck.snapshot import open_to_look

WIDTH, NARROWEST, WIDEST = 100, 60, 140
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])(?: ago)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def main(*, box: str, at: str | None = None, as_json: bool = False, ascii: bool = False) -> int:
    """The command: print the page; 0. Raises BadInput, NotFound, ConfigError and the store's errors."""
    store = open_to_look()
    with store.connect("autopsy", read_only=True) as db:
        check_schema(store, db)
        instant, naive = parse_at(at, db.now()) if at else (None, False)
        found = evidence(db, box, instant, history.box_facts(db).get(box))
    if as_json:
        text = json.dumps(plain(found), indent=2, ensure_ascii=True)
    else:
        ascii = ascii or not (sys.stdout.encoding or "").lower().startswith("utf")
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        lines = page(found, min(WIDEST, max(NARROWEST, width)), naive=naive)
        text = "\n".join(ascii_only(line) if ascii else line for line in lines)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return 0


def parse_at(text: str, now: datetime) -> tuple[datetime, bool]:
    """The instant that somebody means, and whether it came without a zone and was taken as this machine's time.

    ``2026-11-29T13:41:20+01:00``, ``2026-11-29 13:41``, ``13:41`` (the last one before now), ``2h`` or ``90m ago``. Raises
    BadInput.
    """
    given = text.strip()
    if match := _AGO.fullmatch(given.lower()):
        return now - timedelta(seconds=min(float(match[1]) * _UNITS[match[2]], 3650 * 86400.0)), False
    try:
        if match := _CLOCK.fullmatch(given):
            here = now.astimezone().replace(tzinfo=None, microsecond=0)
            naive = here.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0))
            at = naive.astimezone()
            return (at if at <= now else (naive - timedelta(days=1)).astimezone()), True
        at = datetime.fromisoformat(given)
        return (at, False) if at.tzinfo is not None else (at.astimezone(), True)
    except (ValueError, OverflowError):
        raise BadInput(
            f"--at: {clean(text, 60)!r} is no time; write 13:41, 2026-11-29T13:41:20, with a zone (+01:00) or not, or 2h ago"
        ) from None


def plain(found: Evidence) -> dict[str, Any]:
    """The same as data: JSON-able, times in UTC."""
    data = asdict(found)
    data["silent_s"] = found.silent_s
    data["slow"] = [one.values() for one in slow_at_the_end(found.last)]
    return jsonable(data)  # type: ignore[no-any-return]
