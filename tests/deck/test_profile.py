"""Profiles: read whole or refused with the place; what they change; what they never print."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.telemetry.limits import Level, gpu_level, limits_for
from flightdeck import actions as table
from flightdeck.model.axis import SPANS_S, Window
from flightdeck.profile import SORTS as PROFILE_SORTS
from flightdeck.profile import WINDOWS, key_names, pick, read_profiles, with_keys
from flightdeck.sorting import SORTS

GOOD = """
[day]
service = "the fleet"

[night]
dsn = "postgresql://ana:hunter2@db/fleet"
project = "p"
theme = "light"
ascii = true
mouse = false
sort = "heat"
window = "6h"
bell = true

[night.keys]
freeze = "F"
filter = ["f5", "|"]
quit = "Q"

[[night.class]]
match = "*gb10*"
gpu_c = { warn = 90, hot = 99.5, clear = 96, hold_s = 30 }
thermal_s = { hot = 20 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(GOOD)
    return path


def test_a_profile_says_how_one_fleet_is_seen(file: Path) -> None:
    night = pick("night", str(file))
    assert (night.db, night.project, night.theme) == ("postgresql://ana:hunter2@db/fleet", "p", "light")
    assert night.ascii and not night.mouse and not night.read_only and night.bell
    assert (night.sort, night.window_s) == ("heat", 21_600)
    assert pick("day", str(file)).db == "postgresql:///?service=the%20fleet"
    limits = limits_for("spark", "", ["NVIDIA GB10"], night.classes)
    assert limits.gpu_c == Level(90.0, 99.5, 96.0, 30.0)
    assert limits.thermal_s == Level(20.0, 20.0, 19.0, 0.0)
    assert limits.cpu_c == Level(100.0, 105.0, 101.0, 30.0), "what the profile leaves open stays as the class has it"
    assert "hunter2" not in repr(night)


def test_it_is_chosen_by_name_by_environment_or_not_at_all(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert pick(None, None).name == ""
    home = tmp_path / "config" / "flightdeck" / "profiles.toml"
    home.parent.mkdir(parents=True)
    home.write_text("[day]\n[night]\n")
    monkeypatch.setenv("FLIGHTDECK_PROFILE", "day")
    assert pick(None, None).name == "day"
    assert pick("night", None).name == "night", "the command line stands above the environment"
    with pytest.raises(
        ConfigError, match=r"--profile dawn: .*profiles.toml has no such profile \(it has: day, night\)"
    ):
        pick("dawn", None)
    monkeypatch.setenv("FLIGHTDECK_PROFILE", "dusk")
    with pytest.raises(ConfigError, match="FLIGHTDECK_PROFILE dusk"):
        pick(None, str(file))
    with pytest.raises(ConfigError, match=r"nowhere.toml: No such file"):
        pick("day", str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("night = 1", "[night] a profile is a table"),
        ("[night]\ncolour = 'red'", "[night] colour: no setting"),
        ("[night]\ntheme = 'pink'", "[night] theme: 'pink' is none of dark, light"),
        ("[night]\nsort = 'mood'", "[night] sort: 'mood'"),
        ("[night]\nwindow = '2h'", "[night] window: '2h' is none of 10m, 1h"),
        ("[night]\nascii = 1", "[night] ascii: must be true or false"),
        ("[night]\nproject = 1", "[night] project: must be a text"),
        ("[night]\ndsn = 'mysql://me:hunter2@db'", "[night] dsn: must begin with"),
        ("[night]\ndsn = 5", "[night] dsn: must be a text"),
        ("[night]\ndsn = 'sqlite:///x'\nservice = 'y'", "[night] service: there is a dsn"),
        ("[night]\nservice = ''", "[night] service: is empty"),
        ("[night.keys]\nfly = 'f'", "[night] keys.fly: there is no such action"),
        ("[night.keys]\nfreeze = 's'", "[night] keys.freeze: 's' is the key of sort already"),
        ("[night.keys]\nfreeze = 'P'", "[night] keys.freeze: 'P' is the key of park_all already"),
        ("[night.keys]\nfreeze = '/'", "[night] keys.freeze: '/' is the key of filter already"),
        ("[night.keys]\nfreeze = 'F'\nsort = 'F'", "'F' is the key of"),
        ("[night.keys]\nfreeze = 'ctrl+c'", "[night] keys.freeze: 'ctrl+c' is the key of quit already"),
        ("[night.keys]\nfreeze = []", "[night] keys.freeze: must be a key"),
        ("[night.keys]\nfreeze = 'a b'", "[night] keys.freeze: must be a key"),
        ("[night]\nread_only = true\n[night.keys]\npark = 'F'", "[night] keys.park: 'park the lane' changes the fleet"),
        ("[[night.class]]\ngpu_c = { hot = 9 }", "[night] class 1: match must be a pattern"),
        ("[[night.class]]\nmatch = 'x'", "[night] class 1 (x): sets no level"),
        ("[[night.class]]\nmatch = 'x'\nheat = 9", "[night] class 1 (x): heat is no level"),
        ("[[night.class]]\nmatch = 'x'\ngpu_c = 9", "[night] class 1 (x): gpu_c: must be a table"),
        ("[[night.class]]\nmatch = 'x'\ngpu_c = { hot = 'a' }", "class 1 (x): gpu_c: hot must be a number"),
        ("[[night.class]]\nmatch = 'x'\ngpu_c = { hot = nan }", "class 1 (x): gpu_c: hot must be a number"),
        ("[[night.class]]\nmatch = 'x'\ngpu_c = { hot = 80, warn = 90 }", "gpu_c: warn (90) is above hot (80)"),
        ("[[night.class]]\nmatch = 'x'\ngpu_c = { hot = 80, clear = 90 }", "gpu_c: clear (90) is above hot (80)"),
        ("night = [", "not TOML"),
        ("night = [" + "[" * 5000, "nested too deep"),
    ],
)
def test_a_file_is_checked_whole_and_refused_with_the_place(file: Path, text: str, words: str) -> None:
    file.write_text("[day]\n" + text if text != "night = 1" and not text.startswith("night = [") else text)
    with pytest.raises(ConfigError) as refused:
        pick("day", str(file))
    said = str(refused.value)
    assert words in said and str(file) in said
    assert "\n" not in said and "hunter2" not in said


def test_a_key_map_moves_bindings_hints_and_help_together(file: Path) -> None:
    actions = {action.id: action for action in with_keys(table.offered(False), pick("night", str(file)).keys)}
    assert actions["freeze"].keys == ("F", "upper_f") and actions["freeze"].show == "F"
    assert actions["filter"].keys == ("f5", "vertical_line") and actions["filter"].show == "f5 |"
    assert actions["quit"].keys == ("Q", "upper_q", "ctrl+c"), "ctrl+c leaves, whatever a map says"
    assert actions["sort"] == table.by_id("sort")
    assert key_names("/") == ("slash",) and key_names("?") == ("question_mark",) and key_names("a") == ("a",)


def test_two_keys_may_change_places(file: Path) -> None:
    file.write_text("[night.keys]\nsort = 'f'\nfreeze = 's'")
    assert read_profiles(file)["night"].keys == {"sort": ("f",), "freeze": ("s",)}


def test_the_words_are_those_of_the_deck() -> None:
    assert set(WINDOWS.values()) == set(SPANS_S)
    assert {name for name, span in WINDOWS.items() if Window(span).name == name} == set(WINDOWS)
    assert tuple(sort.name for sort in SORTS) == PROFILE_SORTS


@pytest.mark.parametrize(
    ("gpu", "cpu", "normal"),
    [
        ("NVIDIA GB10", "", 98.0),
        ("", "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 90.0),
        ("NVIDIA H200", "AMD EPYC 9654", 75.0),
    ],
)
def test_what_is_normal_for_a_class_is_no_alarm(gpu: str, cpu: str, normal: float) -> None:
    """D28: a GB10 works at 83-98 C all day."""
    limits = limits_for("box", cpu, [gpu] if gpu else [])
    for level in (gpu_level(limits, None), limits.cpu_c):
        assert level is not None and level.tone(normal) == "ok" and level.clear < level.hot


def test_a_card_that_tells_its_own_limit_is_judged_by_it() -> None:
    assert gpu_level(limits_for("box", "", ["NVIDIA RTX 4090"]), 84.0).tone(80.0) == "warn"
    assert gpu_level(limits_for("box", "", ["NVIDIA RTX 4090"]), None).tone(79.0) == "ok"
