"""``flightdeck demo``: a living fleet of four boxes out of nothing, gone again with the deck.

The order is for the first frame: server, schema, a seeded hour, then the deck; the fleet itself starts beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from engine import config
from engine.errors import ConfigError
from engine.store import Store, embedded
from engine.store.migrate import migrate
from flightdeck import lifeline
from flightdeck.demo import seed
from flightdeck.lifeline import Line
from flightdeck.plan import Plan, Program

INGEST_QUEUES = ("imports", "thumbnails")
APP = "flightdeck.demo.jobs"
STOP_S = 2.0  # nothing of the demo is worth waiting for: its database is emptied when it starts again

# box (None: this one), queue, project, slots
LANES: tuple[tuple[str | None, str, str, int], ...] = (
    ("kestrel", "gpu", "render", 1),
    ("kestrel", "cpu", "render", 4),
    ("harrier", "gpu", "speech", 1),
    ("harrier", "cpu", "speech", 3),
    ("harrier", "imports", "", 1),
    ("osprey", "gpu", "render", 1),
    ("osprey", "gpu", "speech", 1),
    ("osprey", "cpu", "render", 4),
    (None, "cpu", "speech", 1),
    (None, "thumbnails", "", 1),
)


def default_dir() -> Path:
    """Where the demo keeps its server and logs."""
    return config.data_dir() / "demo"


def main(*, directory: str | None = None, headless: bool = False, **looks: Any) -> None:
    """The command. ``looks``: options of the deck. Ends the process with the deck's exit code."""
    if headless:
        run(None, Path(directory) if directory else None)
        return
    from flightdeck.launch import open_deck
    from flightdeck.term.session import check_terminal, leave_process

    check_terminal()

    def show(store: Store) -> int:
        config.set_flags(db_url=store.url)
        return open_deck(**looks, opener=lambda: store, leave=False)

    leave_process(run(show, Path(directory) if directory else None))


def run(show: Callable[[Store], int] | None, directory: Path | None = None) -> int:
    """Start the demo, show it, stop it; the exit code. ``show`` None: print the database's URL and wait for a signal.

    A second demo in the same directory only looks at the first one.
    """
    directory = (directory or default_dir()).expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with _only_one(directory) as first, lifeline.signals_unwind(0 if show is None else None) as unwinding:
        if not first:
            return _look_on(show, directory)
        url = f"embedded:///{directory / 'postgres'}?dbname={seed.DATABASE}"
        line: Line | None = None
        try:
            store = Store(url)
            prepare(store)
            server_url = embedded.server_for(url)[0].url(seed.DATABASE)
            with unwinding.held():
                line = lifeline.start(plan(directory, url, server_url), clean_environment())
            _tell(directory, server_url)
            return _wait_for_a_signal(server_url) if show is None else show(store)
        finally:
            if line is not None:
                if show is not None and sys.stderr.isatty():
                    sys.stderr.write("stopping the fleet ...\n")
                line.end("stop", STOP_S + 6.0)
                line.close()
            embedded.release(directory / "postgres")


def prepare(store: Store) -> None:
    """Schema and seed. The demo's database is emptied first, so that every demo begins the same."""
    migrate(store)
    with store.connect("demo") as db:
        seed.start_afresh(db)
        seed.seed(db)
        for box, queue, project, slots in LANES:
            seed.announce(db, box or config.box_name(), queue, project, slots)


def plan(directory: Path, url: str, server_url: str) -> Plan:
    """Every process of the demo. ``url`` keeps the server up; ``server_url`` is what the processes connect to."""
    python = sys.executable
    common = {
        "FLIGHTDECK_DB_URL": server_url,
        "FLIGHTDECK_APP": APP,
        "FLIGHTDECK_INGEST_QUEUES": ",".join(INGEST_QUEUES),
        "FLIGHTDECK_GRACE": "0.5",
        "FLIGHTDECK_LOG_LEVEL": "warning",
        "XDG_DATA_HOME": str(directory / "data"),  # jobs' logs stay out of the user's own
    }
    here = {"FLIGHTDECK_BOX": config.box_name()}  # --box reaches them all
    # Not all at once: the deck's first frame needs a processor too.
    programs = [
        Program("recorders", (python, "-m", "flightdeck.demo.recorders"), common, after_s=0.5),
        Program("orchestrator", (python, "-m", "engine.commands", "queue-orchestrator"), common, after_s=0.8),
        Program("recorder", (python, "-m", "engine.commands", "queue-recorder"), common | here, after_s=1.0),
        Program("scheduler", (python, "-m", "engine.commands", "queue-scheduler"), common | here, after_s=1.6),
        Program("workload", (python, "-m", "flightdeck.demo.workload"), common, after_s=1.2),
    ]
    for number, (box, queue, project, slots) in enumerate(LANES):
        named = {"FLIGHTDECK_BOX": box or config.box_name(), "FLIGHTDECK_PROJECT": project}
        argv = [python, "-m", "engine.commands", "queue-claim-worker", "--queue", queue, "--slots", str(slots)]
        if queue == "gpu":
            argv.append("--share-gpu")  # the simulated cards have no device to lock
        name = f"lane {box or 'this'} {queue} {project}".strip()
        programs.append(Program(name, tuple(argv), common | named, after_s=1.4 + 0.2 * number))
    return Plan(tuple(programs), str(directory / "run"), keep=url, stop_s=STOP_S)


def clean_environment() -> dict[str, str]:
    """Ours without settings that were meant for another fleet."""
    return {k: v for k, v in os.environ.items() if not k.startswith("FLIGHTDECK_") or k == "FLIGHTDECK_BOX"}


def _tell(directory: Path, server_url: str) -> None:
    (directory / "demo.json").write_text(json.dumps({"url": server_url, "pid": os.getpid()}))


def _look_on(show: Callable[[Store], int] | None, directory: Path) -> int:
    """Another demo runs here: look at it, leave it alone."""
    try:
        known = json.loads((directory / "demo.json").read_text())
    except (OSError, ValueError):
        raise ConfigError(f"another demo is starting in {directory}; try again in a moment") from None
    if show is None:
        raise ConfigError(f"a demo runs in {directory} already (process {known['pid']})")
    return show(Store(known["url"]))


@contextmanager
def _only_one(directory: Path) -> Iterator[bool]:
    fd = os.open(directory / "demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        (directory / "demo.json").unlink(missing_ok=True)
        yield True
    finally:
        os.close(fd)


def _wait_for_a_signal(server_url: str) -> NoReturn:
    sys.stdout.write(f"ready {server_url}\n")
    sys.stdout.flush()
    while True:
        signal.pause()
