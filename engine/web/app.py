"""The application: its guards, its routes, and what lives as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio.to_thread
from fastapi import FastAPI

from engine.queue.services import version
from engine.store import Store, open_store
from engine.web import health, jobs, live, metrics, openapi, page, problems, reference, runs
from engine.web.access import AccessMiddleware, Gatekeeper
from engine.web.databases import Databases
from engine.web.limits import BodyMiddleware, LimitsMiddleware
from engine.web.presence import Presence
from engine.web.settings import WebSettings

# What is asked most stands first: paths are looked up in this order.
ROUTERS = (jobs.router, runs.router, health.router, metrics.router, live.router, reference.router, page.router)
SPARE_THREADS = 8  # for what needs no turn,
SPARE_CONNECTIONS = 1  # that of /healthz among it


def create_app(settings: WebSettings, opener: Callable[[], Store] = open_store) -> FastAPI:
    """The ASGI application. ``opener`` is asked for the store when it is first needed, and again while it fails.

    ``app.state``: settings, databases, keeper (:class:`Gatekeeper`), stopping (an event, set when the shutdown begins:
    streams end then). Every request has ``request.state.access`` and ``request.state.request_id``.
    """
    app = FastAPI(
        title="Flight Deck",
        version=version() or "0",
        description="Submit, watch and cancel jobs and runs of a fleet.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # its answer would lead to whatever the Host header says
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.databases = Databases(opener, settings.pool + SPARE_CONNECTIONS, settings.wait_seconds)
    app.state.keeper = keeper = Gatekeeper(settings)
    app.state.stopping = asyncio.Event()
    problems.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyMiddleware, settings=settings, no_turn=needs_no_turn)
    app.add_middleware(AccessMiddleware, settings=settings, keeper=keeper)
    app.add_middleware(LimitsMiddleware, settings=settings)
    for router in ROUTERS:
        app.include_router(router)
    return app


def needs_no_turn(path: str) -> bool:
    """Requests that use no connection to the database while they are answered, or must be answered always."""
    return path in ("/healthz", "/events", "/login", "/logout") or path.startswith("/static/")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = app.state.settings.pool + SPARE_THREADS
    state = app.state
    begun = datetime.now(UTC).isoformat(timespec="seconds")

    def detail() -> dict[str, object]:
        crowd = getattr(state, "crowd", None)
        return {
            "project": state.settings.project,
            "since": begun,
            "connections": len(crowd) if crowd is not None else 0,
        }

    presence = Presence(state.databases.store, state.settings.box, detail)
    presence.start()
    try:
        yield
    finally:
        state.stopping.set()
        await anyio.to_thread.run_sync(presence.stop)
        state.databases.close()
