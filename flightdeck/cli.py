"""The command ``flightdeck``: the deck itself, and thin entries to the demo, this box for real, and one frame."""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

import typer

from engine.commands.options import App as AppOption
from engine.commands.options import Box, Db, LogLevel, Project, new_app, run_app, start

# Textual reads these when it is imported: few small frames, no animation, so that a slow link stays fresh.
os.environ.setdefault("TEXTUAL_FPS", "15")
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

ReadOnly = Annotated[bool, typer.Option("--read-only", help="Look only: no key, entry or hint that changes anything")]
Ascii = Annotated[bool, typer.Option("--ascii", help="Nothing but ASCII in frames and charts")]
NoMouse = Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal")]
Theme = Annotated[str | None, typer.Option("--theme", metavar="dark|light", help="Colours (default dark)")]

cli = new_app(invoke_without_command=True, help="Flight Deck: the cockpit of your boxes, their lanes and jobs.")


@cli.callback()
def deck(
    context: typer.Context,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    read_only: ReadOnly = False,
    ascii: Ascii = False,
    no_mouse: NoMouse = False,
    theme: Theme = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Database and looks by name [FLIGHTDECK_PROFILE]")
    ] = None,
    profiles: Annotated[
        str | None, typer.Option("--profiles", metavar="FILE", help="Where profiles stand, default profiles.toml")
    ] = None,
    log_level: LogLevel = None,
    blocks: Annotated[
        bool,
        typer.Option("--blocks", help="Traces of blocks, for terminals without braille [FLIGHTDECK_CHARTS=blocks]"),
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave")] = False,
) -> None:
    """Open the deck on the configured database.

    Example: flightdeck --db postgresql://fleet@db/fleet --read-only
    """
    if version:
        from engine.lane.start import version as number

        typer.echo(f"flightdeck {number()}")
        raise typer.Exit
    if theme not in (None, "dark", "light"):
        raise typer.BadParameter(f"{theme!r} is neither dark nor light", param_hint="--theme")
    if blocks:
        os.environ["FLIGHTDECK_CHARTS"] = "blocks"
    from flightdeck.profile import pick

    mine = pick(profile, profiles)  # below the command line, above the environment
    project = project if project is not None else mine.project
    context.obj = {
        "project": project,
        "read_only": read_only or mine.read_only,
        "ascii": ascii or mine.ascii,
        "mouse": mine.mouse and not no_mouse,
        "theme": theme or mine.theme,
        "profile": mine,
    }
    quiet = None if context.invoked_subcommand == "up" else "warning"  # what `up` starts has the level of its settings
    start(db=db or mine.db, project=project, box=box, log_level=log_level or quiet)
    if context.invoked_subcommand is None:
        from flightdeck.launch import open_deck

        open_deck(**context.obj)


@cli.command()
def demo(
    context: typer.Context,
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="DIR", help="Where the demo keeps its database")
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="No screen: tell the database's URL and wait")] = False,
    project: Project = None,
    box: Box = None,
    read_only: ReadOnly = False,
    ascii: Ascii = False,
    no_mouse: NoMouse = False,
    theme: Theme = None,
) -> None:
    """A living fleet that needs nothing: three simulated boxes and this one, real lanes and jobs.

    Example: flightdeck demo
    """
    from flightdeck.demo.launch import main as run_demo

    start(box=box, log_level="warning")
    run_demo(directory=directory, headless=headless, **_looks(context, project, read_only, ascii, no_mouse, theme))


@cli.command()
def up(
    context: typer.Context,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help="flightdeck.toml")] = None,
    no_deck: Annotated[bool, typer.Option("--no-deck", help="No screen: for systemd")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: AppOption = None,
    read_only: ReadOnly = False,
    ascii: Ascii = False,
    no_mouse: NoMouse = False,
    theme: Theme = None,
    log_level: LogLevel = None,
) -> None:
    """Run this box for real: recorder, orchestrator, scheduler and lanes, kept alive, then the deck.

    Example: flightdeck up --config flightdeck.toml
    """
    from flightdeck.up import main as run_up

    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    if log_level is None and not no_deck:
        logging.getLogger().setLevel("WARNING")  # of this process, which has the screen
    run_up(config=config, no_deck=no_deck, **_looks(context, project, read_only, ascii, no_mouse, theme))


@cli.command()
def snapshot(
    context: typer.Context,
    text: Annotated[bool, typer.Option("--text", help="One frame as plain text (the default)")] = False,
    json: Annotated[bool, typer.Option("--json", help="The data behind the frame")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="One frame as SVG")] = False,
    width: Annotated[int, typer.Option("--width", min=20, max=1000)] = 120,
    height: Annotated[int, typer.Option("--height", min=4, max=500)] = 40,
    page: Annotated[
        str, typer.Option("--page", metavar="PAGE", help="fleet, jobs, throttle, events, queues, box:NAME or job:ID")
    ] = "fleet",
    recording: Annotated[
        str | None, typer.Option("--recording", metavar="FILE", help="Look at what record has written")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="A time of the recording: 14:03:22, 90s; default its end")
    ] = None,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    ascii: Ascii = False,
    theme: Theme = None,
) -> None:
    """Print one frame and leave.

    Example: flightdeck snapshot --text --width 80 --height 24
    """
    from flightdeck.snapshot import main as run_snapshot

    if sum((text, json, svg)) > 1:
        raise typer.BadParameter("choose one of --text, --json, --svg")
    start(db=db, project=project, box=box, log_level="warning")
    looks = _looks(context, project, True, ascii, True, theme)
    form = "json" if json else "svg" if svg else "text"
    run_snapshot(
        form=form,
        width=width,
        height=height,
        project=looks["project"],
        ascii=looks["ascii"],
        theme=looks["theme"],
        page=page,
        recording=recording,
        at=at,
    )


@cli.command()
def record(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to write; compressed when it ends in .gz")],
    for_: Annotated[str | None, typer.Option("--for", metavar="SPAN", help="End after 90s, 10m, 2h")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there")] = False,
    db: Db = None,
    log_level: LogLevel = None,
) -> int:
    """Write down what the deck would show, to be played back with replay. Changes nothing in the database.

    Example: flightdeck record night.jsonl.gz --for 10m
    """
    from engine.orders import parse_span
    from flightdeck.record import main as run_record

    start(db=db, log_level=log_level or "error")
    return run_record(
        path=file, seconds=parse_span(for_, "--for").total_seconds() if for_ else None, overwrite=overwrite
    )


@cli.command()
def replay(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What record has written")],
    speed: Annotated[float, typer.Option("--speed", min=0.25, max=64.0, help="How fast time goes")] = 1.0,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Where to begin: 14:03:22, 90s")] = None,
    project: Project = None,
    ascii: Ascii = False,
    no_mouse: NoMouse = False,
    theme: Theme = None,
) -> int:
    """Play a recording back on the deck's own screens. Needs no database; nothing can be changed.

    Space pauses, + and - change the speed, { and } jump a minute, @ goes to a time.

    Example: flightdeck replay night.jsonl.gz --at 03:12 --speed 8
    """
    from flightdeck.replay_app import open_replay

    start(log_level="error")
    looks = _looks(context, project, True, ascii, no_mouse, theme)
    del looks["read_only"]
    return open_replay(file, speed=speed, at=at, **looks)


@cli.command()
def autopsy(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BOX", help="Its name")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="13:41, 2026-11-29T13:41:20+01:00, 2h ago; without a zone: this machine's"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The evidence as JSON")] = False,
    db: Db = None,
    ascii: Ascii = False,
    log_level: LogLevel = None,
) -> int:
    """A box's last hour before an instant: what climbed, what held it back and when, the jobs aboard. Default: now.

    Works for a box that died days ago. Exit codes: 0 there is a page, 1 nothing was recorded by then, 2 no such box.

    Example: flightdeck autopsy spark --at 13:41
    """
    from flightdeck.autopsy import main as run_autopsy

    start(db=db, log_level=log_level or "error")
    return run_autopsy(box=name, at=at, as_json=json, ascii=ascii or bool((context.obj or {}).get("ascii")))


@cli.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="The findings as JSON")] = False,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    log_level: LogLevel = None,
) -> int:
    """Look at the database, the fleet and this box; one line for each finding, with what to do.

    Exit codes: 0 all is well, 1 warnings, 2 faults. Changes nothing.

    Example: flightdeck doctor --db postgresql://fleet@db/fleet
    """
    from flightdeck.doctor import main as run_doctor

    start(db=db, project=project, box=box, log_level=log_level or "error")
    return run_doctor(as_json=json)


def _looks(
    context: typer.Context, project: str | None, read_only: bool, ascii: bool, no_mouse: bool, theme: str | None
) -> dict[str, Any]:
    """Options of the look, given before or after the command's name."""
    before = context.obj or {}
    if theme not in (None, "dark", "light"):
        raise typer.BadParameter(f"{theme!r} is neither dark nor light", param_hint="--theme")
    return {
        "project": project if project is not None else before.get("project"),
        "read_only": read_only or bool(before.get("read_only")),
        "ascii": ascii or bool(before.get("ascii")),
        "mouse": not no_mouse and bool(before.get("mouse", True)),
        "theme": theme or before.get("theme"),
        "profile": before.get("profile"),
    }


def main() -> None:
    run_app(cli, "flightdeck", store_code=2)


if __name__ == "__main__":
    main()
