"""The server: uvicorn, with deadlines and limits of its own for what comes before a request is whole."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from engine.web.settings import WebSettings

log = logging.getLogger("engine.web")


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the service in good order, with exit code 0 (uvicorn's own would raise them again)."""

        def stop(*_: object) -> None:
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(app: Any, host: str, port: int, settings: WebSettings) -> None:
    """Serve until SIGTERM or SIGINT; then what runs is answered, for ``grace`` seconds at most."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # the rest is said here
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="asyncio",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
    )
    Server(config).run()
