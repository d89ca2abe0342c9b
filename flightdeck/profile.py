"""Profiles: how one operator wants to see one fleet. ``flightdeck --profile night`` (``FLIGHTDECK_PROFILE``).

They stand in ``flightdeck/profiles.toml`` under the user's configuration directory, or in the file of ``--profiles``, one table
each::

    [night]
    dsn = "postgresql://ana@db/fleet"        # or: service = "fleet", of pg_service.conf
    theme = "dark"                           # dark, light
    read_only = true
    sort = "heat"
    window = "6h"
    bell = true

    [night.keys]
    freeze = "F"                             # an action of the help page, and the key or keys that do it

    [[night.class]]
    match = "*GB10*"                         # name of a GPU, of the CPU, or of the box
    gpu_c = { warn = 95, hot = 100, clear = 97, hold_s = 30 }

What the command line says counts first, then the profile, then the environment, then the default: whoever names a profile
wants that one, whatever a shell once exported. A file is checked whole; an error names file, profile and key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engine.config import ConfigError
from engine.telemetry.limits import Limits
from engine.telemetry.limits_file import classes_of, default_path, read_tables
from flightdeck import actions as table
from flightdeck.actions import Action

ENVIRONMENT = "FLIGHTDECK_PROFILE"
THEMES = ("dark", "light")
SORTS = ("name", "heat", "throttling", "load")
WINDOWS = {"10m": 600, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
URLS = ("postgresql://", "postgres://", "sqlite:", "embedded:")
ALWAYS = ("ctrl+c",)  # leaves the deck, whatever a key map says

_TEXTS = {"dsn", "service", "project", "theme", "sort", "window"}
_SWITCHES = {"ascii", "mouse", "read_only", "bell"}


@dataclass(frozen=True)
class Profile:
    """One table of the file; None: not said there. ``db`` may hold a password and is in no message."""

    name: str = ""
    db: str | None = field(default=None, repr=False)
    project: str | None = None
    theme: str | None = None
    ascii: bool = False
    mouse: bool = True
    read_only: bool = False
    sort: str | None = None
    window_s: int | None = None
    bell: bool = False
    classes: tuple[tuple[str, Limits], ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def pick(name: str | None, path: str | None) -> Profile:
    """The profile of ``--profile``, else of the environment; an empty one when nobody asks for any. Raises ConfigError."""
    wanted = name or os.environ.get(ENVIRONMENT)
    if not wanted:
        if path is not None:
            read_profiles(Path(path))
        return Profile()
    file = Path(path) if path is not None else default_path()
    known = read_profiles(file)
    if wanted not in known:
        asked = "--profile" if name else ENVIRONMENT
        raise ConfigError(
            f"{asked} {wanted}: {file} has no such profile (it has: {', '.join(sorted(known)) or 'none'})"
        )
    return known[wanted]


def read_profiles(path: Path) -> dict[str, Profile]:
    """Every profile of a file. Raises ConfigError: one line with file, profile and key, never with a value of a ``dsn``."""
    data = read_tables(path)
    found = {}
    for name, values in data.items():
        try:
            if not isinstance(values, dict):
                raise ConfigError("a profile is a table, written as [name]")
            found[name] = _profile(name, values)
        except ConfigError as error:
            raise ConfigError(f"{path}: [{name}] {error}") from None
    return found


def with_keys(actions: Iterable[Action], keys: Mapping[str, tuple[str, ...]]) -> tuple[Action, ...]:
    """The actions with the profile's keys. What reads the table (bindings, hints, help, palette) shows those."""
    return tuple(_rebound(action, keys[action.id]) if action.id in keys else action for action in actions)


def _rebound(action: Action, keys: tuple[str, ...]) -> Action:
    names = [name for key in keys for name in key_names(key)]
    names += [key for key in ALWAYS if key in action.keys and key not in names]
    return replace(action, keys=tuple(names), show=" ".join(keys))


def key_names(key: str) -> tuple[str, ...]:
    """A key as people write it (``F``, ``/``, ``ctrl+x``, ``f5``) as Textual names it; some have two names."""
    if len(key) != 1 or (key.isalnum() and not key.isupper()):
        return (key,)
    if key.isupper():
        return key, f"upper_{key.lower()}"
    from textual.keys import _character_to_key

    return (_character_to_key(key),)


# -- one table


def _profile(name: str, values: Mapping[str, Any]) -> Profile:
    known = _TEXTS | _SWITCHES | {"keys", "class"}
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{unknown[0]}: no setting of a profile (known: {', '.join(sorted(known))})")
    for key in sorted(_TEXTS & values.keys()):
        if not isinstance(values[key], str) or "\0" in values[key]:
            raise ConfigError(f"{key}: must be a text")
    for key in sorted(_SWITCHES & values.keys()):
        if not isinstance(values[key], bool):
            raise ConfigError(f"{key}: must be true or false, got {values[key]!r}")
    for key, choices in (("theme", THEMES), ("sort", SORTS), ("window", tuple(WINDOWS))):
        if key in values and values[key] not in choices:
            raise ConfigError(f"{key}: {values[key]!r} is none of {', '.join(choices)}")
    read_only = bool(values.get("read_only", False))
    return Profile(
        name,
        _database(values),
        values.get("project"),
        values.get("theme"),
        bool(values.get("ascii", False)),
        bool(values.get("mouse", True)),
        read_only,
        values.get("sort"),
        WINDOWS.get(values.get("window", "")),
        bool(values.get("bell", False)),
        classes_of(values.get("class", [])),
        _keys(values.get("keys", {}), read_only),
    )


def _database(values: Mapping[str, Any]) -> str | None:
    if "dsn" in values and "service" in values:
        raise ConfigError("service: there is a dsn already; give one of them")
    if "dsn" in values:
        if not values["dsn"].startswith(URLS):
            raise ConfigError("dsn: must begin with postgresql://, sqlite: or embedded:")
        return str(values["dsn"])
    if "service" in values:
        if not values["service"]:
            raise ConfigError("service: is empty")
        return f"postgresql:///?service={quote(values['service'], safe='')}"
    return None


def _keys(values: Any, read_only: bool) -> dict[str, tuple[str, ...]]:
    if not isinstance(values, dict):
        raise ConfigError("keys: must be a table, written as [name.keys]")
    by_id = {action.id: action for action in table.ACTIONS}
    found: dict[str, tuple[str, ...]] = {}
    for name, given in values.items():
        action = by_id.get(name)
        if action is None:
            raise ConfigError(f"keys.{name}: there is no such action (known: {', '.join(sorted(by_id))})")
        if read_only and action.writes:
            raise ConfigError(f"keys.{name}: {action.title.lower()!r} changes the fleet, and this profile is read-only")
        keys = [given] if isinstance(given, str) else given
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and _is_key(key) for key in keys):
            raise ConfigError(f"keys.{name}: must be a key or a list of keys, got {given!r}")
        found[name] = tuple(keys)
    _refuse_conflicts(found)
    return found


def _is_key(key: str) -> bool:
    """A printable character, or a name as ``ctrl+x``, ``f5``, ``page_up``."""
    if len(key) == 1:
        return key.isascii() and key.isprintable() and key != " "
    return key.isascii() and all(part.replace("_", "").isalnum() for part in key.split("+"))


def _refuse_conflicts(keys: Mapping[str, tuple[str, ...]]) -> None:
    """No key may do two things on one page."""
    taken: dict[str, list[Action]] = {}
    typed = {name: key for given in keys.values() for key in given for name in key_names(key)}
    mine = with_keys(table.ACTIONS, keys)
    for action in sorted(mine, key=lambda action: action.id in keys):  # the profile's own last, so that it is named
        for key in action.keys:
            for other in taken.get(key, []):
                if not action.pages or not other.pages or set(action.pages) & set(other.pages):
                    raise ConfigError(f"keys.{action.id}: {typed.get(key, key)!r} is the key of {other.id} already")
            taken.setdefault(key, []).append(action)
