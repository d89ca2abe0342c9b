"""``flightdeck doctor``: what ails the database, the fleet and this box, a line each."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from engine.commands.options import strip_passwords
from engine.doctor import examine, exit_code
from engine.store import open_store
from flightdeck.model.text import clean


def main(*, as_json: bool = False) -> int:
    """Print the findings; the exit code. Raises ConfigError."""
    found = examine(open_store)
    code = exit_code(found)
    if as_json:
        text = json.dumps({"exit": code, "findings": [asdict(finding) for finding in found]}, indent=2)
        sys.stdout.write(strip_passwords(text) + "\n")
        return code
    for finding in found:  # names and queries come from the database: data, never control bytes
        sys.stdout.write(clean(strip_passwords(finding.line()), 2000) + "\n")
    return code
