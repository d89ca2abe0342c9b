"""What every request meets first: its id, the limits of its body, its turn, one line in the access log, safe headers.

Pure ASGI, in the event loop. A body is read here as a whole, within its deadline, so that a slow sender holds no thread
and no connection to the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.web.problems import current, of_error, problem
from engine.web.settings import WebSettings

access_log = logging.getLogger("engine.web.access")

SECURITY = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with "no-referrer" a browser hides the Origin of our own forms, too
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
DRAINED_MOST = 32 * 1024 * 1024  # of a body that is refused, so that its sender sees the answer
PATH_MOST = 500  # characters of a path that are told and logged
GONE = 499  # what the log says of a request whose client hung up before there was an answer
WAITING_MOST = 64  # requests that wait for a turn, per turn

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Turns:
    """So many requests are worked on at once; others wait in line, for a while. For the event loop's thread."""

    def __init__(self, size: int, wait_s: float) -> None:
        self._free, self._most, self._wait_s = size, size * WAITING_MOST, wait_s
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def take(self) -> bool:
        """False when there was none in time."""
        if self._free > 0:
            self._free -= 1
            return True
        if len(self._waiting) >= self._most:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
            return True
        except TimeoutError:
            if turn.done() and not turn.cancelled():
                self.give()  # it came in the same moment
            return False
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise
        finally:
            self._waiting.pop(turn, None)

    def give(self) -> None:
        while self._waiting:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class LimitsMiddleware:
    """Around everything else. ``inner`` answers; what it raises becomes a problem here."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self.app = app
        self._secrets = settings.tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        request_id = self._id_of(scope)
        path = self._hidden(scope["path"])[:PATH_MOST]
        current.set((request_id, path))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = size = 0
        id_header = (b"x-request-id", request_id.encode())

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), id_header, *SECURITY]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(NO_STORE)
                message = {**message, "headers": headers}
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            if _CONTROL.search(scope["path"]):
                await problem(400, "the address holds control characters")(scope, receive, answer)
            elif scope["method"] == "HEAD" and scope["path"] != "/events":  # a stream has no end
                await self.app({**scope, "method": "GET"}, receive, answer)  # the server leaves the body out
            else:
                await self.app(scope, receive, answer)
        except Exception as error:
            if status:  # too late for another answer: the connection is closed
                of_error(error)
                raise _Aborted from None
            await of_error(error)(scope, receive, answer)
        finally:
            if access_log.isEnabledFor(logging.INFO):
                access = state.get("access")
                access_log.info(
                    '{"at": "%s", "id": "%s", "method": "%s", "path": %s, "status": %d, "ms": %.2f, "bytes": %d, "who": %s}',
                    datetime.now(UTC).isoformat(timespec="milliseconds"),
                    request_id,
                    scope["method"],
                    json.dumps(path),
                    status or GONE,
                    (time.perf_counter() - begun) * 1000,
                    size,
                    json.dumps(access.name if access else ""),
                )

    def _id_of(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given = value.decode("latin-1")
                if _ID.fullmatch(given) and self._hidden(given) == given:
                    return str(given)
        return secrets.token_hex(8)

    def _hidden(self, text: str) -> str:
        """``text`` without our tokens, should somebody have put one there."""
        for token in self._secrets:
            text = text.replace(token, "***")
        return text


class _Aborted(Exception):
    """An answer broke off in the middle; the log has said why."""


class BodyMiddleware:
    """Inside of the access check: reads the body, then waits for a turn, then lets the app work."""

    def __init__(self, app: ASGIApp, settings: WebSettings, no_turn: Callable[[str], bool]) -> None:
        self.app = app
        self._limit = settings.body_limit
        self._deadline_s = settings.body_seconds
        self._turns = Turns(settings.pool, settings.wait_seconds)
        self._no_turn = no_turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length, chunked, expects = _announced(scope)
        if length > 0 or chunked:
            if length > self._limit:
                await self._too_large(scope, receive, send, drain=not expects)
                return
            try:
                async with asyncio.timeout(self._deadline_s):
                    body = await _read(receive, self._limit)
            except TimeoutError:
                await _closing(408, f"the body was not there within {self._deadline_s:g} s")(scope, receive, send)
                return
            except _Gone:
                return
            if body is None:
                await self._too_large(scope, receive, send, drain=True)
                return
            receive = _replay(body, receive)
        if self._no_turn(scope["path"]):
            await self.app(scope, receive, send)
            return
        if not await self._turns.take():
            await problem(503, "too many requests are waiting; try again", retry_after=1)(scope, receive, send)
            return
        taken = True

        async def answer(message: Message) -> None:
            nonlocal taken
            if taken:  # the app is done with the database once it answers: a slow reader holds no turn
                taken = False
                self._turns.give()
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            if taken:
                self._turns.give()

    async def _too_large(self, scope: Scope, receive: Receive, send: Send, drain: bool) -> None:
        """Answer, then swallow what still comes: a sender that is cut off in the middle would not see the answer."""
        answer = _closing(413, f"the body is larger than {self._limit:,} bytes")
        if not drain:
            await answer(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 413, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": True})
        swallowed = 0
        try:
            async with asyncio.timeout(min(5.0, self._deadline_s)):
                while swallowed < DRAINED_MOST:
                    message = await receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        break
                    swallowed += len(message.get("body", b""))
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


class _Gone(Exception):
    """The client hung up before its request was whole."""


def _closing(status: int, detail: str) -> Response:
    return problem(status, detail, headers={"connection": "close"})


def _announced(scope: Scope) -> tuple[int, bool, bool]:
    """What the head says of the body: its length in bytes (0: none), sent in chunks, sent only when told to go on."""
    length, chunked, expects = 0, False, False
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value) if value.isdigit() else 1
        elif name == b"transfer-encoding":
            chunked = True
        elif name == b"expect":
            expects = True
    return length, chunked, expects


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None when it is longer than ``limit``. Raises _Gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            return None
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """A ``receive`` that gives the body once, then what the client still says (that it is gone, say)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
