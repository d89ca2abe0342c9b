"""Levels that somebody has set: the ``[[name.class]]`` tables of a profile, in ``profiles.toml``. For decks, and for the leader.

::

    [[night.class]]
    match = "*GB10*"                         # name of a GPU, of the CPU, or of the box
    gpu_c = { warn = 95, hot = 100, clear = 97, hold_s = 30 }

Every error is a ConfigError, one line that names the key, and never a value of another key: a profile may hold a password.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import platformdirs

from engine import config
from engine.errors import ConfigError
from engine.telemetry.limits import LEVELS, Level, Limits

_THROTTLE = {"thermal_s", "brake_s", "cpu_throttle_s"}

Classes = tuple[tuple[str, Limits], ...]


def default_path() -> Path:
    """Where profiles stand: the setting ``profiles``, else in the user's configuration directory."""
    return Path(
        config.get("profiles") or platformdirs.user_config_path("flightdeck", appauthor=False) / "profiles.toml"
    )


def read_tables(path: Path) -> dict[str, Any]:
    """The profiles of a file, unchecked, by name. Raises ConfigError that names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not TOML that anybody would write: nested too deep") from None


def configured() -> Classes:
    """The classes of the profile that the setting ``profile`` names; none without one. Raises ConfigError."""
    name = config.get("profile")
    if not name:
        return ()
    path = default_path()
    table = read_tables(path).get(name)
    if not isinstance(table, dict):
        raise ConfigError(f"--profile {name}: {path} has no such profile")
    try:
        return classes_of(table.get("class", []))
    except ConfigError as error:
        raise ConfigError(f"{path}: [{name}] {error}") from None


def classes_of(values: Any) -> Classes:
    """The classes of one profile, as its file has them."""
    if not isinstance(values, list) or not all(isinstance(item, dict) for item in values):
        raise ConfigError("class: classes are written as [[name.class]] tables")
    found = []
    for number, item in enumerate(values, 1):
        where = f"class {number}"
        match = item.get("match")
        if not isinstance(match, str) or not match:
            raise ConfigError(f"{where}: match must be a pattern for the name of a GPU, a CPU or a box")
        if unknown := sorted(item.keys() - {"match", *LEVELS}):
            raise ConfigError(f"{where} ({match}): {unknown[0]} is no level (known: {', '.join(LEVELS)})")
        levels = {key: _level(item[key], f"{where} ({match}): {key}", key) for key in LEVELS if key in item}
        if not levels:
            raise ConfigError(f"{where} ({match}): sets no level (known: {', '.join(LEVELS)})")
        found.append((match, Limits(match, **levels)))
    return tuple(found)


def _level(value: Any, where: str, key: str) -> Level:
    if not isinstance(value, dict) or "hot" not in value:
        raise ConfigError(
            f"{where}: must be a table as {{ warn = 85, hot = 95, clear = 90, hold_s = 30 }}, hot at least"
        )
    if unknown := sorted(value.keys() - {"warn", "hot", "clear", "hold_s"}):
        raise ConfigError(f"{where}: {unknown[0]} is not known (known: warn, hot, clear, hold_s)")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1e6:
            raise ConfigError(f"{where}: {name} must be a number from 0 on, got {number!r}")
    hot = float(value["hot"])
    warn = float(value.get("warn", hot))
    clear = float(value.get("clear", min(warn, hot * 0.95)))
    if warn > hot:
        raise ConfigError(f"{where}: warn ({warn:g}) is above hot ({hot:g})")
    if clear > hot:
        raise ConfigError(f"{where}: clear ({clear:g}) is above hot ({hot:g}): an alert would end while it begins")
    return Level(warn, hot, clear, float(value.get("hold_s", 0.0 if key in _THROTTLE else 20.0)))
