"""The recorder's probes as a program of their own (``python -m engine.telemetry.probes.program OPTIONS``).

It touches drivers, so that the recorder does not; what it knows of databases is nothing. See telemetry/probing.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from engine.telemetry import asked, wire


def main() -> None:
    """Answer ``{"want": "facts"}`` and ``{"want": "sample", "dt_s": seconds}`` until nobody asks any more."""
    options = asked.options()
    from engine.telemetry.probes.source import RealSource

    logging.basicConfig(stream=sys.stderr, level=str(options["log_level"]).upper())
    source = RealSource(options["box"], root=options["root"], cadence_s=float(options["cadence_s"]))

    def answer(question: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            if question["want"] == "facts":
                found: dict[str, Any] = {"facts": wire.pack_facts(source.facts())}
            else:
                found = {"sample": wire.pack_sample(source.sample(float(question["dt_s"])))}
        except Exception as error:  # whatever a sensor throws: no sample this time
            logging.getLogger("engine.probes").exception("no %s", question["want"])
            found = {"error": f"{type(error).__name__}: {error}"}
        return found | {"problem": source.problem, "hung_s": source.hung_s}

    asked.answers(answer)
    source.close()


if __name__ == "__main__":
    main()
