"""The server: uvicorn with our protocol class, bound before it starts, and ended in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from engine.errors import EngineError
from engine.web import access_log
from engine.web.protocol import Crowd, protocol_class
from engine.web.settings import WebSettings

log = logging.getLogger("engine.web")

BACKLOG = 2048  # connections that the kernel holds for us,
AT_ONCE = 128  # and that are taken in one go, before any of them is looked at
SPARE_FILES = 128  # what the process needs beside clients and databases
KEEP_ALIVE_S = 15
SETTLE_S = 0.05  # what clients had sent when the shutdown began is read in this time


def serve(app: FastAPI, host: str, port: int, settings: WebSettings) -> None:
    """Serve until SIGTERM or SIGINT; then what runs is answered, for ``grace`` seconds at most.

    Raises EngineError when the address cannot be had.
    """
    sockets = bind(host, port)
    access_log.set_up()
    make_server(app, settings).run(sockets)


def make_server(app: FastAPI, settings: WebSettings) -> Server:
    """The server of the app, to be run with the sockets that :func:`bind` gives."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # the rest is said here
    crowd = Crowd(settings, places(settings))
    app.state.crowd = crowd
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol_class(crowd),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
    )
    return Server(config, app.state.stopping)


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of ``host`` that this machine has. Raises EngineError."""
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            if bound and not port:  # any port, but one
                address = (address[0], bound[0].getsockname()[1], *address[2:])
            try:
                bound.append(_listener(family, kind, proto, address))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                lacking = error  # a name may also lead to ::1 where there is no IPv6
        if lacking is not None and not bound:
            raise lacking
    except OSError as error:
        for sock in bound:
            sock.close()
        raise EngineError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return bound


def _listener(family: int, kind: int, proto: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def places(settings: WebSettings) -> int:
    """How many clients may be connected: as many as set, if this process may have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = 2 * settings.pool + 2 * AT_ONCE + SPARE_FILES
    needed = settings.connections + others
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings.connections
    found = max(16, soft - others)
    log.warning("%d clients at once, not %d: only %d files may be open", found, settings.connections, soft)
    return found


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or []:
            sock.listen(BACKLOG)  # asyncio takes one number for both
            host, port = sock.getsockname()[:2]
            log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, end streams, answer what has come in; then close."""
        log.info("ending: no new connections; what runs is answered")
        for server in self.servers:
            server.close()
        self._stopping.set()
        await asyncio.sleep(SETTLE_S)
        await super().shutdown(sockets)
        log.info("ended")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM, SIGINT and SIGHUP end the service with exit code 0; uvicorn's own way would raise them again."""
        if threading.current_thread() is not threading.main_thread():  # only that one is told of signals
            yield
            return

        def stop(*_: object) -> None:
            self.should_exit = True

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
