"""The page's templates: escaped without exception, every text of a row made harmless on its way in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from engine.display import units
from engine.display.text import clean, clean_lines
from engine.web.page.fleet import project_name
from engine.web.sessions import COOKIE, SAID, Session, Sessions

HERE = Path(__file__).resolve().parent
MOST = 20_000  # characters of a line
TYPES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

NAV = (
    ("fleet", "/", "Fleet"),
    ("jobs", "/page/jobs", "Jobs"),
    ("queues", "/page/queues", "Queues"),
    ("workers", "/page/workers", "Workers"),
    ("throttling", "/page/throttling", "Throttling"),
    ("events", "/page/events", "Events"),
    ("docs", "/docs", "API"),
)


def clock(value: object) -> str:
    """A time of today's size: ``14:03:22``; what is no time is nothing."""
    return value.strftime("%H:%M:%S") if isinstance(value, datetime) else ""


def moment(value: object) -> str:
    """``2026-03-04 14:03:22``, UTC."""
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else ""


class Exact(str):
    """A text that goes back to us as it is, in a hidden field: a name that an order must write."""


def finish(value: object) -> object:
    """What an expression in a template comes to: None is nothing, and no text, filtered or not, does more than be read."""
    if value is None:
        return ""
    if type(value) is not str or (value.isascii() and value.isprintable()):
        return value
    return clean_lines(value, limit=MOST) if "\n" in value else clean(value, MOST)


def with_code(text: str) -> Markup:
    """A text in which `words between backticks` are code."""
    parts = [escape(finish(part)) for part in str(text).split("`")]
    if len(parts) % 2 == 0:
        parts[-2:] = [parts[-2] + "`" + parts[-1]]
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


@cache
def environment() -> Environment:
    """One for the process. ``StrictUndefined``: a name that a template misspells is an error, not a hole in the page."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finish,
        auto_reload=False,
    )
    found.filters |= {
        "text": clean,
        "lines": lambda value: clean_lines(value, limit=2000),
        "project": project_name,
        "age": units.age,
        "ago": units.ago,
        "number": units.number,
        "count": units.count,
        "gb": units.gigabytes,
        "ghz": units.gigahertz,
        "rate": units.rate,
        "clock": clock,
        "moment": moment,
        "code": with_code,
        "exact": Exact,
    }
    found.globals["nav"] = NAV
    found.globals["version_of"] = version_of
    return found


@cache
def static(name: str) -> bytes | None:
    """A file of the page; None: there is no such file."""
    return (HERE / "static" / name).read_bytes() if name in TYPES else None


@cache
def version_of(name: str) -> str:
    """Changes with a file, so that browsers may keep it."""
    return hashlib.sha256(static(name) or b"").hexdigest()[:12]


def sessions_of(request: Request) -> Sessions:
    """The service's sessions."""
    found: Sessions = request.app.state.keeper.sessions
    return found


def session_of(request: Request) -> Session | None:
    """The session that the request's cookie proves."""
    return sessions_of(request).read(request.cookies.get(COOKIE))


def nonce_of(request: Request) -> str:
    """What forms are bound to: the session, or (without tokens) nothing but the process."""
    session = session_of(request)
    return session.nonce if session is not None else ""


def here_of(request: Request) -> str:
    """The address that was asked for."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def is_https(request: Request) -> bool:
    """Whether the browser speaks https: with us, or with the proxy before us, by what that says."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").partition(",")[0].strip())


def render(
    request: Request, template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """A page for whoever asks. ``values`` are the template's; who asks, forms' token and the line to say once are added."""
    sessions = sessions_of(request)
    said = sessions.said(request.cookies.get(SAID))
    access = getattr(request.state, "access", None)
    operates = access is not None and access.level == "operate"
    given = {
        "page": "",
        "refresh_s": 0,
        "rest_s": 2,
        "age_s": None,
        "trouble": "",
        "said": said,
        "who": access.name if access is not None else "",
        "operates": operates,
        "logged_in": session_of(request) is not None,
        "form_token": sessions.form_token(nonce_of(request)) if operates else "",
        "here": here_of(request),
    }
    text = environment().get_template(template).render(given | values)
    answer = HTMLResponse(text, status, headers)
    if said:
        answer.delete_cookie(SAID, httponly=True, samesite="strict")
    return answer
