"""The web service under test: a real process on a free port, or the application in this process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from engine.queue import listing
from engine.store import Store
from engine.web import metrics
from engine.web.app import create_app
from engine.web.server import Server, bind, make_server
from engine.web.settings import WebSettings
from tests.support import Processes, command, eventually

OPERATE = "operate-token-0123456789"
READ = "read-token-0123456789"
_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Service:
    """A running queue-broker-web."""

    process: subprocess.Popen[bytes]
    port: int
    store: Store
    log: Callable[[], str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = OPERATE, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30.0, trust_env=False, verify=False, **options)


def start_service(
    processes: Processes, store: Store, env: Mapping[str, str] | None = None, *args: str, port: int = 0
) -> Service:
    """Start queue-broker-web with both tokens set and wait until it listens. ``env`` adds, or ("") takes away."""
    tokens = {"FLIGHTDECK_WEB_TOKEN": OPERATE, "FLIGHTDECK_WEB_TOKEN_READ": READ}
    process = processes.spawn(
        command("queue-broker-web", "--db", store.url, "--port", str(port), *args), env={**tokens, **(env or {})}
    )

    def listening() -> int:
        found = _LISTENING.search(processes.log(process))
        assert found or process.poll() is None, processes.log(process)
        return int(found[1]) if found else 0

    found = eventually(listening, what="the service listens")
    return Service(process, found, store, lambda: processes.log(process))


@pytest.fixture(autouse=True)
def counts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine every count takes long, and one that took long is believed for a while."""
    monkeypatch.setattr(listing, "QUICK_S", float("inf"))
    monkeypatch.setattr(metrics, "KEPT_S", 0.0)


@pytest.fixture
def service(processes: Processes, store: Store) -> Service:
    """A real server process with both tokens set, on PostgreSQL and then on SQLite."""
    return start_service(processes, store)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    """A client of ``service`` with the operate token."""
    with service.client() as client:
        yield client


@dataclass(frozen=True)
class Threaded:
    """The real server on real sockets, in a thread of this process: what a test needs no process for."""

    server: Server
    app: FastAPI
    port: int

    def client(self, token: str | None = OPERATE, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"http://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False, verify=False, **options)

    def end(self) -> None:
        """As SIGTERM does."""
        self.server.should_exit = True


@contextlib.contextmanager
def threaded(store: Store, settings: WebSettings, **changes: Any) -> Iterator[Threaded]:
    """Serve with both tokens set; ends with the block."""
    settings = replace(settings, token=OPERATE, token_read=READ, **changes)
    app = create_app(settings, lambda: store)
    sockets = bind("127.0.0.1", 0)
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run, args=(sockets,), name="server")
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), what="the server has started")
        yield Threaded(server, app, sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def web_settings() -> WebSettings:
    """No tokens, no rate limit, short waits."""
    return WebSettings(project="", box="testbox", rate=0.0, pool=4, wait_seconds=5.0)


@pytest.fixture
def app_client(store: Store, web_settings: WebSettings) -> Iterator[TestClient]:
    """The application in this process on both stores, as this machine sees it (no tokens): the quick way."""
    with in_process(store, web_settings) as client:
        yield client


def in_process(store: Store, settings: WebSettings, **changes: Any) -> TestClient:
    """A client of the application in this process; a context manager, which runs its lifespan."""
    app = create_app(replace(settings, **changes), lambda: store)
    return TestClient(app, base_url="http://localhost", client=("127.0.0.1", 50000))
