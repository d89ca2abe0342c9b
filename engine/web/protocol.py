"""HTTP/1.1 on a socket, as uvicorn speaks it, with what uvicorn leaves open: deadlines and limits for heads, bodies that
nobody reads, readers that do not read, and the number of connections.

A request's head must be whole within ``head_seconds`` of its first byte (of the connection, for the first one), its
body within ``body_seconds``; who takes nothing of an answer for ``body_seconds`` is dropped. When all places are taken, a newcomer gets that of the connection that has been without a
request for the longest; it is turned away only when all of them have one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from enum import Enum
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.web.limits import SECURITY
from engine.web.problems import MEDIA_TYPE
from engine.web.settings import WebSettings

log = logging.getLogger("engine.web")

HEAD_MOST = 64 * 1024  # bytes of a request's head
HEADERS_MOST = 100
LATE_S = 2.0  # the app tells of a body that is late; a connection that is still there so much later is dropped
SWEEP_S = 0.25
TOLD_S = 10.0  # what was turned away is told so often at most


class Phase(Enum):
    IDLE = 1  # between requests
    HEAD = 2
    BODY = 3
    WHOLE = 4  # all of the request is there


class Crowd:
    """All connections of one server. For the event loop's thread."""

    def __init__(self, settings: WebSettings, most: int) -> None:
        self.head_s, self.body_s, self.most = settings.head_seconds, settings.body_seconds, most
        self._members: dict[GuardedProtocol, None] = {}
        self._free: dict[GuardedProtocol, None] = {}  # without a request, the longest so first
        self._silent: dict[GuardedProtocol, None] = {}  # never had one
        self._turned_away: dict[str, int] = {}
        self._told_at = float("-inf")
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._members)

    def join(self, new: GuardedProtocol) -> bool:
        """False when every connection has a request: there is no place."""
        if len(self._members) >= self.most:
            self.count(f"connections over the limit of {self.most:,}")
            out = next(iter(self._silent), None) or next(iter(self._free), None)
            if out is None:
                return False
            self.leave(out)
            out.transport.abort()
        self._members[new] = self._silent[new] = None
        if not self._sweeping:
            self._sweeping = True
            new.loop.call_later(SWEEP_S, self._sweep, new.loop)
        return True

    def leave(self, member: GuardedProtocol) -> None:
        for table in (self._members, self._free, self._silent):
            table.pop(member, None)

    def works(self, member: GuardedProtocol) -> None:
        self._silent.pop(member, None)
        self._free.pop(member, None)

    def rests(self, member: GuardedProtocol) -> None:
        if member in self._members:
            self._free[member] = None

    def count(self, what: str) -> None:
        """Note what was turned away before it was a request; the log has one line about many of them."""
        self._turned_away[what] = self._turned_away.get(what, 0) + 1

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for member in list(self._members):
            member.look_at_clock(now)
        if self._turned_away and now - self._told_at >= TOLD_S:
            self._told_at = now
            log.warning("turned away: %s", ", ".join(f"{n:,} {what}" for what, n in sorted(self._turned_away.items())))
            self._turned_away.clear()
        if self._members or self._turned_away:
            loop.call_later(SWEEP_S, self._sweep, loop)
        else:
            self._sweeping = False


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Subclasses set ``crowd``; see :func:`protocol_class`."""

    crowd: Crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase = Phase.HEAD
        self._deadline = self.loop.time() + self.crowd.head_s
        self._raw = 0  # bytes of the head at hand
        self._verdict: tuple[int, str] | None = None
        self._last = False  # no further request after this one
        self._framing = b""  # of a body behind a head that asks for another protocol
        if not self.crowd.join(self):
            self._turn_away(503, "too many connections; try again", [(b"retry-after", b"1")])
            return
        sock: socket.socket = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # The kernel ends what takes nothing, or is not there any more.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, int(self.crowd.body_s * 1000)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase in (Phase.IDLE, Phase.WHOLE):  # also what is no request yet, empty lines say
            self._begin_head()
        if self._phase is Phase.HEAD:
            self._raw += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._phase is Phase.HEAD and self._raw > HEAD_MOST and not self.transport.is_closing():
            self._verdict = (431, f"the head of the request is longer than {HEAD_MOST:,} bytes")
            self.send_400_response("")

    def _feed(self, data: bytes) -> None:
        """Also past a head that offers to go on in another protocol, as clients do that would rather speak HTTP/2: the
        parser stops there, but what follows is this request's body. Raises HttpParserError."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            framing, self._framing = self._framing, b""
            if framing:
                self.parser = httptools.HttpRequestParser(_Body(self))
                self.parser.feed_data(b"POST / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % framing)
                self.parser.feed_data(data[stopped.args[0] :])

    def look_at_clock(self, now: float) -> None:
        """Called several times a second: close what is late."""
        if now <= self._deadline:
            return
        if self._phase is Phase.HEAD and not self._answering():
            self.crowd.count(f"heads that were not whole within {self.crowd.head_s:g} s")
            if self._raw:
                self._turn_away(408, f"the head of the request was not whole within {self.crowd.head_s:g} s")
            else:
                self.transport.abort()
        elif self._phase is Phase.BODY:
            self.crowd.count(f"bodies that were not whole within {self.crowd.body_s:g} s")
            self.transport.abort()

    def shutdown(self) -> None:
        """The server ends: what is underway is answered, and the connection is closed after it."""
        if self._phase is Phase.HEAD and self._raw and not self._answering():
            self._last = True
        else:
            super().shutdown()

    # What the parser finds

    def on_message_begin(self) -> None:
        if self._phase is not Phase.HEAD:
            self._begin_head()
        self._size = self._headers = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._size += len(url)
        self._check_head()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value) + 4
        self._headers += 1
        self._check_head()
        if self._phase is Phase.HEAD:  # trailers are counted and forgotten
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = Phase.BODY
        self._deadline = self.loop.time() + self.crowd.body_s + LATE_S
        self.crowd.works(self)
        super().on_headers_complete()
        if self._last or self.parser.should_upgrade():
            self.cycle.keep_alive = False
        if self.parser.should_upgrade():
            framing = [field for field in self.headers if field[0] in (b"content-length", b"transfer-encoding")]
            self._framing = b"".join(b"%b: %b\r\n" % field for field in framing)

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self._phase = Phase.WHOLE
        self._deadline = float("inf")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering():
            self.crowd.rests(self)
            if self._phase is Phase.WHOLE:
                self._phase = Phase.IDLE

    def send_400_response(self, msg: str) -> None:
        """What came is refused: what the parser could not read, or what we do not want to."""
        if self.transport.is_closing():
            return
        if self._answering() and not self.cycle.more_body:
            self.cycle.keep_alive = False  # a request that was whole before is answered first
            self.flow.pause_reading()
            return
        status, detail = self._verdict or (400, "this is no HTTP request")
        self.crowd.count("requests that were no HTTP" if status == 400 else "heads that were too long")
        self._turn_away(status, detail)

    def _begin_head(self) -> None:
        self._phase = Phase.HEAD
        self._deadline = self.loop.time() + self.crowd.head_s
        self._raw = 0

    def _check_head(self) -> None:
        if self._size > HEAD_MOST or self._headers > HEADERS_MOST:
            self._verdict = (431, f"the head has more than {HEAD_MOST:,} bytes or {HEADERS_MOST} fields")
            raise ValueError(self._verdict[1])  # the parser stops

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _turn_away(self, status: int, detail: str, more: list[tuple[bytes, bytes]] | None = None) -> None:
        """Answer without the app, and close."""
        self.transport.write(refusal(status, detail, more or []))
        self.transport.close()


class _Body:
    """What a parser tells that reads the rest of a request."""

    def __init__(self, protocol: GuardedProtocol) -> None:
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def refusal(status: int, detail: str, more: list[tuple[bytes, bytes]]) -> bytes:
    """A whole answer, as bytes on the wire, of a request that has no id and no path."""
    title = STATUS_LINE[status].decode().split(" ", 2)[2].strip()
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *SECURITY,
        *more,
    ]
    return STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n" + body


def protocol_class(crowd: Crowd) -> type[asyncio.Protocol]:
    """The protocol that uvicorn makes one of for each connection."""
    members: dict[str, Any] = {"crowd": crowd}
    return type("Protocol", (GuardedProtocol,), members)
