"""The page's routes answer everything as a page: what was not found, what is refused, what is broken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine.errors import BadInput, Conflict, EngineError, NotAllowed, NotFound, StoreError
from engine.web.page.looks import trouble_of
from engine.web.page.render import render
from engine.web.problems import NO_RIGHT, Busy, current, refused_by_database

log = logging.getLogger("engine.web")


class Refused(EngineError):
    """A form that is not taken; its text says why and what to do."""


class PageRoute(APIRoute):
    """A route whose errors are pages; what can be got can be asked for its head, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.methods is not None and "GET" in self.methods:
            self.methods.add("HEAD")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                if b"%00" in request.scope["query_string"]:  # PostgreSQL has no text with it
                    raise BadInput("the address makes no sense")
                return await inner(request)
            except Exception as error:
                return error_page(request, error)

        return handle


def error_page(request: Request, error: Exception) -> Response:
    """A plain page for an error; what is not the reader's business is logged under the request's id."""
    match error:
        case NotFound():
            return _page(request, 404, "Not found", str(error))
        case HTTPException():
            return _page(
                request, error.status_code, "Not found" if error.status_code == 404 else "Refused", error.detail
            )
        case RequestValidationError():
            return _page(request, 422, "Refused", "the address makes no sense")
        case Refused():
            return _page(request, 403, "Refused", str(error))
        case BadInput():
            return _page(request, 422, "Refused", str(error))
        case Conflict():
            return _page(request, 409, "Refused", str(error))
        case NotAllowed():
            log.warning("page %s: %s", current.get()[1], error)
            return _page(request, 403, "Refused", NO_RIGHT)
        case StoreError() | Busy():
            log.warning("page %s: %s", current.get()[1], error)
            return render(
                request, "unavailable.html", 503, {"retry-after": "2"}, trouble=trouble_of(error), refresh_s=5
            )
        case EngineError():
            return _page(request, 422, "Refused", str(error))
    if refused := refused_by_database(error):
        log.warning("page %s: %s", current.get()[1], " ".join(str(error).split()))
        return _page(request, refused[0], "Refused", refused[1])
    log.exception("request %s: page %s failed", *current.get(), exc_info=error)
    return _page(request, 500, "Something went wrong here", "The log has it, under this request's id.")


def _page(request: Request, status: int, title: str, text: str) -> Response:
    request_id = getattr(request.state, "request_id", "")
    return render(request, "error.html", status, title=title, text=text, request_id=request_id)
