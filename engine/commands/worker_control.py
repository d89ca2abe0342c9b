"""``queue-worker-control``: park and resume lanes, cordon boxes."""

from __future__ import annotations

import getpass
import socket
import time
from typing import Annotated, Any

import typer

from engine import config
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.errors import BadInput
from engine.orders import check_queue, parse_span
from engine.queue import controls, models, operate
from engine.store import Db as Database
from engine.store import open_store
from engine.store.migrate import ensure_schema

app = new_app()


@app.command()
def command(
    queue: Annotated[str | None, typer.Option("--queue", metavar="Q", help="The lane's queue")] = None,
    off: Annotated[bool, typer.Option("--off", help="Park")] = False,
    on: Annotated[bool, typer.Option("--on", help="Resume")] = False,
    all_boxes: Annotated[bool, typer.Option("--all-boxes", help="That queue on every box")] = False,
    all_queues: Annotated[
        bool, typer.Option("--all-queues", help="Every queue of the box: cordon with --off, uncordon with --on")
    ] = False,
    all_projects: Annotated[
        bool, typer.Option("--all-projects", help="The lanes of every project there, not of one alone")
    ] = False,
    policy: Annotated[
        str, typer.Option("--policy", metavar="hard|drain", help="hard: stop what runs; drain: let it end")
    ] = "hard",
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the others")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="The order lapses after 90s, 30m, 2h, 1d")
    ] = None,
    preload: Annotated[
        str | None, typer.Option("--preload", metavar="MODEL", help="Load a model into a free slot (queue gpu)")
    ] = None,
    unload: Annotated[
        str | None, typer.Option("--unload", metavar="MODEL", help="Drop a model once no job uses it (queue gpu)")
    ] = None,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Park a lane of this box (or of --box, or of all boxes) and resume it. --off kills what runs and queues it again.

    An order is for the lanes of one project (--project, else of none), or of every project with --all-projects. The answer
    says which lanes it is for, and which lanes of other projects stay as they are.

    Example: queue-worker-control --queue gpu --off --policy drain --reason "new driver" --for 2h

    Example: queue-worker-control --all-queues --all-projects --off --box kestrel

    Example: queue-worker-control --preload sdxl --box kestrel
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    if preload is not None or unload is not None:
        if off or on or all_queues or all_projects or policy != "hard" or reason is not None or for_ is not None:
            raise BadInput("--preload and --unload go with --box or --all-boxes and --queue only")
        if preload is not None and unload is not None:
            raise BadInput("say either --preload or --unload")
        _order_model(preload, unload, queue or "gpu", box, all_boxes)
        return
    if on == off:
        raise BadInput("say either --off or --on")
    if (queue is None) != all_queues:
        raise BadInput("say either --queue Q or --all-queues")
    if all_boxes and box is not None:
        raise BadInput("say either --box or --all-boxes")
    if on and (policy != "hard" or for_ is not None):
        raise BadInput("--policy and --for go with --off")
    if all_projects and project is not None:
        raise BadInput("say either --project or --all-projects")
    if queue == "*":
        raise BadInput("say --all-queues for every queue")
    span = parse_span(for_, "--for") if for_ is not None else None
    if policy not in ("hard", "drain"):
        raise BadInput(f"--policy: hard or drain, not {policy!r}")
    where = "*" if all_boxes else config.box_name()
    who = f"{_user()}@{socket.gethostname()}"
    store = open_store()
    ensure_schema(store, seconds=0)
    with store.connect("queue-worker-control") as conn:
        if queue is not None:
            check_queue(conn, queue)
        until = conn.now() + span if span else None
        queues = queue or "*"

        def order(whose: str) -> operate.Done:
            given = {"box": where, "project": whose, "requested_by": who}
            if all_queues and not all_boxes:
                if on:
                    return operate.uncordon(conn, **given)
                return operate.cordon(conn, policy=policy, reason=reason, until=until, **given)
            if on:
                return operate.resume(conn, queue=queues, reason=reason, **given)
            return operate.park(conn, queue=queues, policy=policy, reason=reason, until=until, **given)

        projects = controls.projects_at(conn, where, queues) if all_projects else [config.project_name()]
        if not projects:
            raise BadInput("--all-projects: no lane has reported from there, of no project; name one by --project")
        with conn.transaction():  # all of them or none
            said = [order(whose).message for whose in projects]
        lanes = controls.lanes_at(conn, where, queues)
    print("\n".join([*said, *_lanes_told(lanes, projects, "off" if off else "on", queue is None or all_boxes)]))


def _lanes_told(lanes: list[dict[str, Any]], ordered: list[str], desired: str, several: bool) -> list[str]:
    """Which lanes an order is for where its words do not name each, and which of other projects it left as they are."""
    mine = [lane for lane in lanes if lane["project"] in ordered]
    rest = [lane for lane in lanes if lane["project"] not in ordered and lane["order"].desired != desired]
    found = []
    if mine and (several or len(ordered) > 1):
        found.append(f"lanes: {_names(mine)}")
    if rest and mine:  # without a lane of its own the order says whose lanes are there
        found.append(f"left as they are: {_names(rest)} (--all-projects orders these, too)")
    return found


def _names(lanes: list[dict[str, Any]]) -> str:
    """``gpu on kestrel of lm_content``, up to twenty of them."""
    shown = [
        f"{lane['queue']} on {lane['box']}{' of ' + lane['project'] if lane['project'] else ''}" for lane in lanes[:20]
    ]
    return ", ".join([*shown, *([f"and {len(lanes) - 20} more"] if len(lanes) > 20 else [])])


def _order_model(preload: str | None, unload: str | None, queue: str, box: str | None, all_boxes: bool) -> None:
    if all_boxes and box is not None:
        raise BadInput("say either --box or --all-boxes")
    where = "*" if all_boxes else config.box_name()
    store = open_store()
    ensure_schema(store, seconds=0)
    with store.connect("queue-worker-control") as conn:
        check_queue(conn, queue)
        action, model = ("load", preload) if preload is not None else ("unload", unload)
        who = f"{_user()}@{socket.gethostname()}"
        done = models.order_model(conn, action, model or "", box=where, queue=queue, requested_by=who)
        print(done.message)
        for owner, said in _answers(conn, done.id or "0").items():
            print(f"{owner.rpartition('/')[0]}: {said}")


def _answers(conn: Database, order_id: str, seconds: float = 2.0) -> dict[str, str]:
    """What the lanes say within a moment; loading goes on without us."""
    until = time.monotonic() + seconds
    while not (said := models.answers(conn, order_id)) and time.monotonic() < until:
        time.sleep(0.05)
    return said


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def main() -> None:
    run_app(app, "queue-worker-control", store_code=2)


if __name__ == "__main__":
    main()
