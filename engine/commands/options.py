"""What every command shares: the common options, logging without passwords, and errors of one line.

A command module reads::

    from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start

    app = new_app()

    @app.command()
    def command(queue: ..., db: Db = None, project: Project = None, box: Box = None, app_module: App = None,
                log_level: LogLevel = None) -> None:
        \"\"\"What it does.

        Example: queue-something --queue gpu
        \"\"\"
        start(db=db, project=project, box=box, app=app_module, log_level=log_level)
        ...

    def main() -> None:
        run_app(app, "queue-something")

Exit codes: 0 done, 1 the database or the work failed, 2 wrong use (with one line on stderr).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import Annotated, Any

import typer

from engine import config
from engine.errors import BadInput, ConfigError, EngineError, NotAllowed, ReadOnlyStore, SchemaMismatch, StoreError

Db = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="URL", help="Database: sqlite:///path, postgresql://..., embedded: [FLIGHTDECK_DB_URL]"
    ),
]
Project = Annotated[
    str | None,
    typer.Option("--project", metavar="NAME", help="Keeps the work of apps apart, default none [FLIGHTDECK_PROJECT]"),
]
Box = Annotated[
    str | None, typer.Option("--box", metavar="NAME", help="This box, default the hostname [FLIGHTDECK_BOX]")
]
App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE", help="Host module that registers nodes, tasks, models [FLIGHTDECK_APP]"),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error [FLIGHTDECK_LOG_LEVEL]"),
]

LEVELS = ("debug", "info", "warning", "error", "critical")
_URL_PASSWORD = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]*):[^\s/]*@")
_WORD_PASSWORD = re.compile(r"(?i)\b(password|passwd|pwd|token)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&'\"]+)")


def strip_passwords(text: str) -> str:
    """``text`` without the passwords of the URLs and connection strings in it."""
    return _WORD_PASSWORD.sub(r"\1\2***", _URL_PASSWORD.sub(r"\1:***@", text))


class LineFormatter(logging.Formatter):
    """UTC times with milliseconds; passwords stripped from messages and from tracebacks."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return strip_passwords(super().format(record))


def set_up_logging(level: str = "info", stream: Any = None) -> None:
    """Send every log record of this process to stderr (or ``stream``), from ``level`` up. Raises ConfigError."""
    if str(level).lower() not in LEVELS:
        raise ConfigError(f"--log-level: {level!r} is none of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(str(level).upper())


def start(
    *,
    db: str | None = None,
    project: str | None = None,
    box: str | None = None,
    app: str | None = None,
    log_level: str | None = None,
    **settings: Any,
) -> None:
    """Record the common flags (and ``settings``: flags of one command that are settings of engine.config), set up logging.

    Imports nothing of the host: who needs the registrations calls ``registry.load_app()``. Raises ConfigError.
    """
    config.set_flags(db_url=db, project=project, box=box, app=app, log_level=log_level, **settings)
    set_up_logging(str(config.get("log_level")))


def new_app(**options: Any) -> typer.Typer:
    """A Typer application in the house's manner: plain help, no completion commands, no decorated tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)


def run_app(app: typer.Typer, name: str, args: list[str] | None = None, *, store_code: int = 1) -> None:
    """Run a console script, or print its version for ``--version``.

    Wrong use exits 2 with one line, an error of ours 1, or 2 where a setting is wrong (also: the schema does not fit, the
    database is read-only), with one line.
    ``store_code``: the exit code when the database refuses; 2 for commands that do one thing and do not wait for it.
    """
    given = sys.argv[1:] if args is None else args
    if given[:1] == ["--version"]:
        from engine.lane.start import version

        print(f"{name} {version()}")
        sys.exit(0)
    for argument in given:
        try:
            argument.encode()
        except UnicodeEncodeError:
            fail(name, f"argument {argument!a} is not valid UTF-8", 2)
    for line in config.ignored_variables(os.environ):
        print(f"{name}: {ascii(line)[1:-1]}", file=sys.stderr)
    try:
        code = app(args=args, prog_name=name, standalone_mode=False)
    except EngineError as error:
        wrong_use = isinstance(error, BadInput | ConfigError | SchemaMismatch | ReadOnlyStore)
        refused = isinstance(error, StoreError) and not isinstance(error, NotAllowed)
        fail(name, str(error), 2 if wrong_use else store_code if refused else 1)
    except typer.Abort:
        fail(name, "aborted", 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        # Typer's own exceptions moved from click to typer between releases; both carry these two.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        said = error.format_message() or "wrong use"
        if not said.rstrip().endswith("?"):  # "Did you mean ...?" is help enough
            where = getattr(getattr(error, "ctx", None), "command_path", None) or name  # "flightdeck up"
            said = f"{said.rstrip('.')}; see {where} --help"
        fail(name, said, int(error.exit_code))
    sys.exit(code if isinstance(code, int) else 0)


def fail(name: str, message: str, code: int) -> None:
    """Leave with one line on stderr and the exit code."""
    line = " ".join(strip_passwords(message).split())
    print(f"{name}: {line}", file=sys.stderr)
    sys.exit(code)
