"""Who may do what: a token in the Authorization header, the page's cookie, or (without any token) this machine itself.

Every path but a few that show nothing is guarded here, before the app, so that a new route is guarded without
thinking of it. GET and HEAD need the read or the operate token, all else the operate token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.web.problems import current, problem
from engine.web.sessions import COOKIE, Sessions
from engine.web.settings import WebSettings

log = logging.getLogger("engine.web")

Level = Literal["operate", "read", ""]  # "": whoever it is, what this request asks for is open

OPEN_PATHS = ("/healthz", "/login", "/logout")  # they show nothing that needs a token,
OPEN_BELOW = "/static/"  # nor does what is below this
TOKEN_NAMES = {"token", "access_token", "auth_token", "web_token", "api_key", "apikey"}
TOLD_S = 60.0  # tokens in query strings are told so often at most
FAILURES_RATE = 10.0  # wrong tokens a second from one address,
FAILURES_BURST = 50.0  # and so many at once
REMEMBERED = 4096  # buckets


@dataclass(frozen=True)
class Access:
    """``name`` is what control_events say: "operate", "read", "loopback" where no token is set, or a name given at the login."""

    level: Level
    name: str


NOBODY = Access("", "")
LOOPBACK = Access("operate", "loopback")


class Buckets:
    """Token buckets by name: ``rate`` a second, ``burst`` at once; the least recently used ones are forgotten. Pure."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> tokens left, at

    def take(self, name: str) -> float:
        """0.0 when there was a token; else the seconds until there is one."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._rate)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._rate
        self._left[name] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return wait_s


class Gatekeeper:
    """Knows the tokens. Compares them in constant time, whatever is offered."""

    def __init__(self, settings: WebSettings, clock: Callable[[], float] = time.time) -> None:
        self.sessions = Sessions(settings.token, settings.token_read, clock)
        self._failures = Buckets(FAILURES_RATE, FAILURES_BURST)
        self._known: list[tuple[bytes, Access]] = []
        for token, access in (
            (settings.token, Access("operate", "operate")),
            (settings.token_read, Access("read", "read")),
        ):
            if token is not None:
                self._known.append((_digest(token.encode()), access))
        self.tokens = settings.tokens

    @property
    def open_to_loopback(self) -> bool:
        return not self._known

    def of_token(self, offered: str | bytes) -> Access | None:
        """Whose token this is."""
        mine = _digest(offered if isinstance(offered, bytes) else offered.encode("utf-8", "replace"))
        found = None
        for digest, access in self._known:
            if hmac.compare_digest(mine, digest):
                found = access
        return found

    def failed(self, address: str) -> float:
        """Count a wrong token from there; the seconds to wait when there were too many, else 0.0."""
        return self._failures.take(address)

    def of_cookie(self, value: str) -> Access | None:
        """Whose session this is, by the name that they gave at the login; None: it is none of ours, or over."""
        session = self.sessions.read(value)
        return None if session is None else Access(session.level, session.name or session.level)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(b"flightdeck web token\n" + token).digest()


class AccessMiddleware:
    """Lets a request through with ``request.state.access``, or answers 400, 401, 403, 429."""

    def __init__(self, app: ASGIApp, settings: WebSettings, keeper: Gatekeeper) -> None:
        self.app = app
        self._keeper = keeper
        self._rate = Buckets(settings.rate, settings.rate)
        self._told = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        found = self._refusal(scope) or self._access(scope)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        wait_s = self._rate.take(found.level if found.level else f"from {_address(scope)}")
        if wait_s:
            answer = problem(429, "too many requests a second; try again later", retry_after=wait_s)
            await answer(scope, receive, send)
            return
        scope["state"]["access"] = found
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if unclear := _unclear(scope):
            return problem(400, unclear)
        query: bytes = scope["query_string"]
        if not (query and self._has_token(query)) and not any(token in scope["path"] for token in self._keeper.tokens):
            return None
        if time.monotonic() - self._told > TOLD_S:
            self._told = time.monotonic()
            log.warning(
                "request %s from %s: a token in the address of %s %s was refused; change it, as logs may have it",
                current.get()[0],
                _address(scope),
                scope["method"],
                current.get()[1],
            )
        return problem(400, "a token does not belong into an address: send it in the header Authorization: Bearer")

    def _has_token(self, query: bytes) -> bool:
        text = query.decode("latin-1")
        if any(name.strip().lower() in TOKEN_NAMES for name, _ in parse_qsl(text, keep_blank_values=True)):
            return True
        plain = unquote_plus(text)
        return any(token in plain or token in text for token in self._keeper.tokens)

    def _access(self, scope: Scope) -> Access | Response:
        """Who asks, or why not."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path: str = scope["path"]
        access: Access
        write = scope["method"] not in ("GET", "HEAD")
        authorization = headers.get(b"authorization")
        if path in OPEN_PATHS or path.startswith(OPEN_BELOW):
            access = NOBODY
        elif authorization is not None:
            scheme, _, token = authorization.partition(b" ")
            known = self._keeper.of_token(token.strip()) if scheme.lower() == b"bearer" else None
            if known is None:
                return self._unknown(scope)
            access = known
        elif self._keeper.open_to_loopback:
            if not _host_is_loopback(headers.get(b"host", b"")):
                return problem(403, "without a token only this machine is served, by the name localhost or 127.0.0.1")
            if b"x-forwarded-for" in headers or b"forwarded" in headers:
                return problem(403, "what comes through a proxy needs a token: set FLIGHTDECK_WEB_TOKEN")
            access = LOOPBACK
        else:
            logged_in = self._of_cookie(headers.get(b"cookie", b""))
            if logged_in is None:
                return _to_login(scope, headers) or self._unauthorized()
            access = logged_in
        if write and authorization is None and (refused := _foreign(headers)):
            return refused
        if write and access.level not in ("operate", ""):
            return problem(403, "this token may look, not change anything; that needs the operate token")
        return access

    def _unknown(self, scope: Scope) -> Response:
        wait_s = self._keeper.failed(_address(scope))
        if wait_s:
            return problem(429, "too many wrong tokens; try again later", retry_after=wait_s)
        return self._unauthorized("not a token of this service")

    def _unauthorized(self, why: str = "a token is needed") -> Response:
        return problem(
            401,
            f"{why}: send the header Authorization: Bearer TOKEN, or log in at /login",
            headers={"www-authenticate": 'Bearer realm="flightdeck"'},
        )

    def _of_cookie(self, header: bytes) -> Access | None:
        for part in header.decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                return self._keeper.of_cookie(value)
        return None


def _unclear(scope: Scope) -> str:
    """Why it is not clear who asks whom: a proxy may have believed another one of two. Empty: it is."""
    names = [name for name, _ in scope["headers"] if name in (b"host", b"authorization")]
    if len(names) != len(set(names)):
        return "the header Host or Authorization is given more than once"
    return "the header Host is missing" if b"host" not in names and scope["http_version"] == "1.1" else ""


def _to_login(scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
    """Whoever asks for a page, and not for data, is sent to the login."""
    if scope["method"] not in ("GET", "HEAD") or b"text/html" not in headers.get(b"accept", b""):
        return None
    path = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    return RedirectResponse("/login" if path == "/" else f"/login?{urlencode({'next': path})}", 303)


def _foreign(headers: Mapping[bytes, bytes]) -> Response | None:
    """The refusal of a write that a browser sends for a page of somebody else's."""
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    same = site is None or site in (b"same-origin", b"none")
    if same and origin is not None:
        same = urlsplit(origin.decode("latin-1")).netloc.encode("latin-1").lower() == headers.get(b"host", b"").lower()
    return None if same else problem(403, "a page of another site may not do this")


def _host_is_loopback(host: bytes) -> bool:
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        if port and not port.startswith(":"):
            return False
    else:
        name = name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
