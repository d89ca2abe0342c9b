"""What went wrong, as problem details (RFC 9457): one shape for every refusal, without a trace of the inside.

A problem is ``{type, title, status, detail, instance, request_id, errors?}``; ``instance`` is the path asked for.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine.errors import (
    BacklogFull,
    BadInput,
    Conflict,
    EngineError,
    NotAllowed,
    NotFound,
    StoreError,
    StoreUnavailable,
)

log = logging.getLogger("engine.web")

RETRY_S = 1  # when the database, or a turn at it, is worth another try
ERRORS_MOST = 20  # of one body that are told
TOLD_S = 10.0  # what all requests suffer from is logged so often
NO_RIGHT = "the service may not do this: its login at the database has no right to it"
MEDIA_TYPE = "application/problem+json"

# (request id, path) of the request at hand; threads that work for it have it too.
current: ContextVar[tuple[str, str]] = ContextVar("current", default=("", ""))


class _Outages:
    """Why requests are refused goes to the log every few seconds, not with each of them."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._since = 0

    def tell(self, error: Exception) -> None:
        self._since += 1
        if time.monotonic() - self._at < TOLD_S:
            return
        many = "" if self._since == 1 else f" (and {self._since - 1:,} before it)"
        log.warning("request %s%s: %s", current.get()[0], many, " ".join(str(error).split()))
        self._at, self._since = time.monotonic(), 0


_outages = _Outages()


class Busy(EngineError):
    """All connections to the database are in use, and were for as long as one may wait."""


def problem(
    status: int,
    detail: str,
    *,
    title: str | None = None,
    headers: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    **more: Any,
) -> Response:
    """The answer that says what is wrong in one line. ``retry_after`` in seconds; ``more``: further members."""
    request_id, path = current.get()
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title or _phrase(status),
        "status": status,
        "detail": detail,
        "instance": path,
        "request_id": request_id,
        **more,
    }
    all_headers = dict(headers or {})
    if retry_after is not None:
        all_headers["retry-after"] = str(max(1, round(retry_after)))
    text = json.dumps(body, ensure_ascii=True, allow_nan=False)
    return Response(text, status_code=status, headers=all_headers, media_type=MEDIA_TYPE)


def of_error(error: Exception) -> Response:
    """What a client is told of an error that came up while its request was worked on; what is not its business is logged."""
    match error:
        case Busy():
            return problem(503, str(error), retry_after=RETRY_S)
        case NotAllowed():
            _outages.tell(error)
            return problem(403, NO_RIGHT)
        case StoreUnavailable():
            _outages.tell(error)
            return problem(503, "the database does not answer just now; try again", retry_after=RETRY_S)
        case StoreError():  # read-only, or of another schema
            _outages.tell(error)
            return problem(503, "the database cannot be used just now; try again", retry_after=RETRY_S * 5)
        case BacklogFull():
            return problem(429, str(error), retry_after=RETRY_S * 5)
        case NotFound():
            return problem(404, str(error))
        case Conflict():
            return problem(409, str(error))
        case BadInput():
            return problem(422, str(error))
    if refused := refused_by_database(error):
        _outages.tell(error)
        return problem(refused[0], refused[1], retry_after=None if refused[0] == 403 else RETRY_S * 5)
    log.error("request %s: %s", current.get()[0], type(error).__name__, exc_info=error)
    return problem(500, "something went wrong here; the log has it under this request_id")


def refused_by_database(error: Exception) -> tuple[int, str] | None:
    """Status and words for what PostgreSQL's own codes say is no fault of ours: the service's login may not do this, or our
    tables are not there (any more)."""
    match "42501" if isinstance(error, NotAllowed) else getattr(error, "sqlstate", None):
        case "42501":
            return 403, NO_RIGHT
        case "42P01":
            return 503, "the database cannot be used just now; try again"
    return None


def install(app: FastAPI) -> None:
    """Answer every error of the app's routes as a problem."""

    async def engine_error(request: Request, error: Exception) -> Response:
        return of_error(error)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = error.detail if isinstance(error.detail, str) else _phrase(error.status_code)
        if error.status_code == 404 and detail == "Not Found":
            detail = "no such page or call; /docs tells what there is"
        return problem(error.status_code, detail, headers=error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return invalid_body(error.errors())

    app.add_exception_handler(EngineError, engine_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)


def invalid_body(found: Any) -> Response:
    """422 with what is wrong where (pydantic's errors); never with the values, which may be anything."""
    errors = [
        {
            "where": ".".join(str(part)[:100] for part in e["loc"])[:300],
            "what": str(e["msg"])[:300],
            "kind": str(e["type"]),
        }
        for e in list(found)[:ERRORS_MOST]
    ]
    first = f"{errors[0]['where']}: {errors[0]['what']}" if errors else "not valid"
    return problem(422, f"the request is not valid: {first}", errors=errors)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
