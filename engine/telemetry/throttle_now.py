"""Which boxes are held back right now, by the recorders' last minutes and the levels of each box's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.store import Db
from engine.telemetry.limits import THROTTLE_LEVELS, Level, Limits, limits_for
from engine.telemetry.rows import AHEAD_S

WORDS = {"T": "heat", "B": "power brake", "C": "cpu"}  # the power cap is no alarm: a full load looks like that
LOOK_BACK_S = 210.0  # two whole minutes and the time until their row is there


@dataclass(frozen=True)
class Held:
    """One box: seconds per cause in its newest minute. ``above``: some cause reached its class's level; ``below``: all of
    them have been under the end of it for two minutes."""

    box: str
    limits: str
    seconds: Mapping[str, float]
    above: bool
    below: bool


def held(db: Db, classes: Sequence[tuple[str, Limits]] = ()) -> dict[str, Held]:
    """By box; only boxes whose recorder wrote a minute lately. ``classes``: levels that count before the known ones."""
    rows = db.all(
        "select f.box, f.at, f.thermal_ms, f.cpu_throttle_ms, (select max(g.hw_brake_ms) from flight_recorder_gpu g "
        "where g.box = f.box and g.tier = 'minute' and g.at = f.at) as brake_ms "
        "from flight_recorder f where f.tier = 'minute' and f.at > {before[back]} "
        "and f.at <= {after[ahead]} order by f.at desc",
        back=LOOK_BACK_S,
        ahead=AHEAD_S,
    )
    minutes: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if isinstance(row["box"], str):
            minutes.setdefault(row["box"], []).append(row)
    facts = {row["box"]: row for row in db.all("select box, cpu_model, gpus from boxes")} if minutes else {}
    return {box: judge(box, found, _limits(box, facts.get(box), classes)) for box, found in minutes.items()}


def judge(box: str, minutes: list[dict[str, Any]], limits: Limits) -> Held:
    """``minutes``: rows of one box, newest first."""
    levels: dict[str, Level] = {letter: getattr(limits, name) for letter, name in THROTTLE_LEVELS.items()}
    each = [_seconds(row) for row in minutes]
    above = {letter: value for letter, value in each[0].items() if levels[letter] and value >= levels[letter].hot}
    below = len(each) > 1 and all(
        value < levels[letter].clear for one in each[:2] for letter, value in one.items() if levels[letter]
    )
    told = above or {letter: value for letter, value in each[0].items() if value >= 0.1}
    return Held(box, limits.name, {WORDS[letter]: value for letter, value in told.items()}, bool(above), below)


def _seconds(row: Mapping[str, Any]) -> dict[str, float]:
    columns = {"T": "thermal_ms", "B": "brake_ms", "C": "cpu_throttle_ms"}
    return {letter: float(row[name]) / 1000.0 for letter, name in columns.items() if row[name] is not None}


def _limits(box: str, facts: Mapping[str, Any] | None, classes: Sequence[tuple[str, Limits]]) -> Limits:
    gpus = facts["gpus"] if facts is not None and isinstance(facts["gpus"], list) else []
    names = [str(gpu.get("name") or "") for gpu in gpus if isinstance(gpu, Mapping)]
    return limits_for(box, str(facts["cpu_model"] or "") if facts is not None else "", names, classes)
