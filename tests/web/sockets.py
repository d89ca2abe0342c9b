"""HTTP by hand: what no client library would send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.web.conftest import OPERATE

PATIENCE_S = 60.0  # a server that has said nothing for so long hangs


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection that fails the test, rather than hang."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        yield sock


def head(method: str, path: str, *fields: str, token: str | None = OPERATE) -> bytes:
    """A request's head, with the operate token."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def rest(sock: socket.socket) -> bytes:
    """All that the server still sends, until it hangs up in whatever way."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def answer(sock: socket.socket) -> Answer:
    """The next answer on a connection that stays open; a body of known length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        assert part, f"the connection ended after {data!r}"
        data += part
    answered = parsed(data)
    length = int(answered.headers.get("content-length", "0"))
    body = answered.body
    while len(body) < length:
        part = sock.recv(65536)
        assert part, "the connection ended within the body"
        body += part
    return Answer(answered.status, answered.headers, body)


def parsed(data: bytes) -> Answer:
    """One whole answer."""
    top, _, body = data.partition(b"\r\n\r\n")
    first, *fields = top.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), data[:200]
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return Answer(int(first.split()[1]), headers, body)
