"""``GET /events``: what changes, as server-sent events, for programs and for the page."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.web.hub import KINDS, Hub, Listener, job_of, message
from engine.web.problems import problem

log = logging.getLogger("engine.web")

router = APIRouter(tags=["live"])

KEEP_ALIVE_S = 15.0
RETRY_MS = 3000
DEFAULT = ("state", "fleet", "samples", "job")
ID_MOST = 2**63 - 1

ABOUT = """What changes, as it happens (`text/event-stream`). Events, by name:

- `state`: `{state, at, listening}`; `connecting`, `live` or `lost` (the database is away; `next_try_s`).
- `fleet`: the whole view, as `flightdeck snapshot --json` has it, without readings and events; when it changes.
- `samples`: a list of the newest sample of each box that has one, by the flight recorder's columns.
- `job`: one row of `job_events` without its detail, with its id as the event's id.
- `gap`: more events of jobs happened than are told; ask `GET /jobs/{id}/events`.
- `changed`: `{what, at}`, only the names of what changed; told when it is asked for with `only`.

The first two come at once. A client that comes back with `Last-Event-ID` is first told the events of jobs since (500 at most);
one may be told twice, its id tells. A client that does not read is dropped. A comment keeps the line alive every 15 s."""

_EXAMPLE = (
    'event: state\ndata: {"state":"live","at":"2026-03-04T14:03:22+00:00","listening":true}\n\n'
    'id: 812\nevent: job\ndata: {"id":"812","job_id":"17","type":"completed","box":"spark","queue":"training"}\n\n'
)


def hub_of(request: Request) -> Hub:
    """The service's one hub."""
    state = request.app.state
    if not hasattr(state, "hub"):
        state.hub = Hub(state.databases, state.stopping)
    found: Hub = state.hub
    return found


@router.get(
    "/events",
    summary="What changes, as server-sent events",
    description=ABOUT,
    response_class=Response,
    responses={
        200: {"description": "A stream without end", "content": {"text/event-stream": {"example": _EXAMPLE}}},
        503: {"description": "Too many listen already, or the service is ending"},
    },
)
async def events(
    request: Request,
    only: Annotated[str, Query(max_length=100, description="Names of events, by commas; all but `changed`")] = "",
    project: Annotated[str | None, Query(max_length=200, description="Events of jobs of this project alone")] = None,
    last_event_id: Annotated[str, Header(max_length=30, description="The last event of a job that was seen")] = "",
) -> Response:
    kinds = frozenset(filter(None, (part.strip() for part in only.split(",")))) or frozenset(DEFAULT)
    if unknown := sorted(kinds - set(KINDS)):
        return problem(422, f"only: {unknown[0][:40]!r} is no event; there are {', '.join(KINDS)}")
    after = last_event_id.strip()
    if after and not (after.isascii() and after.isdigit() and int(after) <= ID_MOST):
        return problem(422, "Last-Event-ID: take it from the event of a job")
    listener = Listener(kinds, project)
    hub = hub_of(request)
    if not hub.join(listener):
        return problem(503, "too many listen already; try again later", retry_after=10)
    return Stream(hub, listener, request.app.state.stopping, int(after) if after else None)


class Stream(Response):
    """Sends what a listener is told until the client goes, falls behind, or the service ends."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, listener: Listener, stopping: asyncio.Event, after: int | None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._listener = listener
        self._stopping = stopping
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        beside = [self._until_gone(receive), self._until_stopping()]
        if self._after is not None and "job" in self._listener.kinds:
            self._listener.waits = True
            beside.append(self._replay(self._after))
        tasks = [asyncio.create_task(one) for one in beside]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, f"retry: {RETRY_MS}\n\n")
            while not self._listener.over:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await self._listener.ready.wait()
                except TimeoutError:
                    await self._send(send, ": keep-alive\n\n")
                    continue
                if text := self._listener.take():
                    await self._send(send, text)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._hub.leave(self._listener)
            for task in tasks:
                task.cancel()

    async def _send(self, send: Send, text: str) -> None:
        """Waits while the client does not read; the server drops it when that takes too long."""
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _replay(self, after: int) -> None:
        """First what happened while the client was away: what the hub does not tell any more, or not yet."""
        await self._hub.viewed.wait()
        rows: list[dict[str, Any]] = []
        more = True
        try:
            rows, more = await asyncio.get_running_loop().run_in_executor(None, self._hub.replay, after)
        except Exception as error:  # whatever it is: the client is told of a gap, and of all that comes
            log.warning("events: what a client missed was not read: %s", error)
        if more:
            self._listener.put_gap(message("gap", "{}"))
        self._listener.put_before([job_of(row) for row in rows])

    async def _until_gone(self, receive: Receive) -> None:
        message: Any = {}
        while message.get("type") != "http.disconnect":
            message = await receive()
        self._listener.end()

    async def _until_stopping(self) -> None:
        await self._stopping.wait()
        self._listener.end()
