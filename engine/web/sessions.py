"""The page's cookies: a signed, dated pass that holds no token, the tokens of forms, and a word to show once.

Keys are derived from the service's tokens, so that every process with the same tokens takes the same cookies and a changed
token ends every session that it opened. Without tokens (loopback) the keys last as long as the process. Pure but for that.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

COOKIE = "flightdeck_session"
SAID = "flightdeck_said"
LASTS_S = 12 * 3600
FORM_LASTS_S = 12 * 3600
SAID_LASTS_S = 60
SAID_MOST = 600  # characters
NAME_MOST = 40
_STRETCH = 100_000  # rounds between a token and a key: a stolen cookie must not help to guess a token
_NAME = re.compile(rf"[\w.@ -]{{0,{NAME_MOST}}}")


@dataclass(frozen=True)
class Session:
    """Who is at the page. ``level``: operate or read; ``name``: what somebody called themself, may be empty."""

    level: Literal["operate", "read"]
    name: str
    nonce: str
    ends_at: float


class Sessions:
    """Opens and reads sessions. ``clock``: seconds since the epoch."""

    def __init__(self, operate: str | None, read: str | None, clock: Callable[[], float] = time.time) -> None:
        self._tokens = {"operate": operate, "read": read}
        self._clock = clock
        self._own = secrets.token_bytes(32)

    @cached_property
    def _keys(self) -> dict[str, bytes]:
        return {
            level: hashlib.pbkdf2_hmac("sha256", token.encode(), f"flightdeck page {level}".encode(), _STRETCH)
            if token
            else self._own
            for level, token in self._tokens.items()
        }

    def open(self, level: str, name: str = "") -> str:
        """The value of a new session's cookie. ``name``: see :func:`tidy_name`."""
        ends = int(self._clock() + LASTS_S)
        words = [level, str(ends), secrets.token_urlsafe(12), _encode(tidy_name(name))]
        return self._signed("session", level, words)

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie; None: it is none of ours, has been changed, or is over."""
        words = (cookie or "").split(".")
        if len(words) != 5 or len(cookie or "") > 400 or words[0] not in ("operate", "read"):
            return None
        level: Literal["operate", "read"] = "operate" if words[0] == "operate" else "read"
        _, ends, nonce, name, _ = words
        if self._tokens[level] is None or not self._is_signed("session", level, words):
            return None
        return None if int(ends) <= self._clock() else Session(level, _decode(name), nonce, float(ends))

    def form_token(self, session: str) -> str:
        """What a form of this session must bring along. ``session``: the session's nonce, empty on loopback."""
        return self._signed("form", "operate", [str(int(self._clock() + FORM_LASTS_S)), _encode(session)])

    def is_form_token(self, token: str, session: str) -> bool:
        """Whether a form came from a page that we made for this session, not too long ago."""
        words = token.split(".")
        if len(words) != 3 or len(token) > 400 or not self._is_signed("form", "operate", words):
            return False
        return int(words[0]) > self._clock() and hmac.compare_digest(words[1], _encode(session))

    def say(self, text: str) -> str:
        """The value of a cookie with a line for the next page."""
        return self._signed("said", "operate", [str(int(self._clock() + SAID_LASTS_S)), _encode(text[:SAID_MOST])])

    def said(self, cookie: str | None) -> str:
        """The line of such a cookie; empty: there is none of ours."""
        words = (cookie or "").split(".")
        if len(words) != 3 or len(cookie or "") > 4000 or not self._is_signed("said", "operate", words):
            return ""
        return _decode(words[1]) if int(words[0]) > self._clock() else ""

    def _signed(self, purpose: str, level: str, words: list[str]) -> str:
        return ".".join([*words, self._mac(purpose, level, words)])

    def _is_signed(self, purpose: str, level: str, words: list[str]) -> bool:
        given = words[-1].encode("utf-8", "replace")
        return hmac.compare_digest(given, self._mac(purpose, level, words[:-1]).encode())

    def _mac(self, purpose: str, level: str, words: list[str]) -> str:
        text = ".".join([purpose, *words]).encode("utf-8", "replace")
        return hmac.new(self._keys[level], text, hashlib.sha256).hexdigest()[:43]


def tidy_name(name: str) -> str:
    """A name as it stands in the audit rows: letters, digits, ``.@_-`` and single spaces, at most 40; else nothing."""
    found = " ".join(name.split())
    return found if _NAME.fullmatch(found) else ""


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode().rstrip("=")


def _decode(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "replace")
    except ValueError:
        return ""
