"""queue-broker-web: the job API and the operator's page."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from engine import config, registry
from engine.commands.options import App, Box, Db, LogLevel, Project, new_app, run_app, start
from engine.errors import ConfigError, SchemaMismatch, StoreUnavailable

log = logging.getLogger("engine.web")

app = new_app()

EXTRA = ("fastapi", "uvicorn", "httptools", "jinja2", "prometheus_client")


@app.command()
def command(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Listen there; others than this machine need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8787,
    db: Db = None,
    project: Project = None,
    box: Box = None,
    app_module: App = None,
    log_level: LogLevel = None,
) -> None:
    """Serve the job API (/docs), the operator's page (/) and metrics (/metrics) over HTTP.

    Serves the jobs of one project. FLIGHTDECK_WEB_TOKEN (operate) and FLIGHTDECK_WEB_TOKEN_READ (look) guard all but
    /healthz; without one only this machine is served. Requests are logged on stdout, one JSON object a line. Ends
    with SIGTERM, when what runs is answered.

    Example: queue-broker-web --db postgresql://fleet@db/fleet --app myhost.jobs --port 8787
    """
    start(db=db, project=project, box=box, app=app_module, log_level=log_level)
    try:
        from engine.web.app import create_app
        from engine.web.server import serve
        from engine.web.settings import WebSettings, check_bind
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"{error.name} is not installed: pip install 'flightdeck[web]'") from None
    settings = WebSettings.from_config()
    check_bind(host, settings)
    if not config.get("backlog_limit"):
        config.set_flags(backlog_limit=config.get("web_backlog_limit"))
    registry.load_app()
    application = create_app(settings)
    try:
        application.state.databases.store()
    except (StoreUnavailable, SchemaMismatch) as error:
        if "newer program" in str(error):
            raise
        log.warning("requests are refused until the database can be used: %s", error)
    serve(application, host, port, settings)


def main() -> None:
    run_app(app, "queue-broker-web")
