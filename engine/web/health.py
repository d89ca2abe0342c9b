"""GET /healthz: does the database answer? The one call that needs no token."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.web.problems import of_error

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the database answers", response_class=Response)
def healthz(request: Request) -> Response:
    """200 when it does, else 503 with Retry-After."""
    try:
        with request.app.state.databases.borrow() as db:
            db.ping()
    except Exception as error:
        return of_error(error)
    return Response('{"status":"ok"}', media_type="application/json")
