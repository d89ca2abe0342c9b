"""Logging in at the page: the token in a form's body once, then a signed cookie; never a token in an address or a cookie."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from engine.web.page.posted import local_path, read_form, text_of
from engine.web.page.render import is_https, render, sessions_of
from engine.web.page.routes import PageRoute, Refused
from engine.web.sessions import COOKIE, LASTS_S, tidy_name

router = APIRouter(route_class=PageRoute, include_in_schema=False)

WRONG = "That is not a token of this service."


@router.get("/login")
def login_form(request: Request) -> Response:
    """The form; whoever needs no token is sent on."""
    back = local_path(request.query_params.get("next"))
    if request.app.state.keeper.open_to_loopback:
        return RedirectResponse(back, 303)
    return render(request, "login.html", next=back, wrong="", name="")


@router.post("/login")
async def login(request: Request) -> Response:
    """Take a token and give a cookie for it. A wrong one: one line, after a comparison that tells nothing by its time."""
    fields = await read_form(request)
    keeper = request.app.state.keeper
    back, name = local_path(text_of(fields, "next")), text_of(fields, "name")
    access = keeper.of_token(text_of(fields, "token").strip())
    if access is None:
        wait_s = keeper.failed(request.client.host if request.client else "unknown")
        wrong = WRONG if not wait_s else f"Too many wrong tokens from here: try again in {max(1, round(wait_s))} s."
        retry = {"retry-after": str(max(1, round(wait_s)))} if wait_s else None
        return render(request, "login.html", 429 if wait_s else 401, retry, next=back, wrong=wrong, name=name)
    if name.strip() and not tidy_name(name):
        raise Refused("a name has letters, digits, spaces and .@_-, at most 40 of them")
    value = await run_in_threadpool(sessions_of(request).open, access.level, name)
    answer = RedirectResponse(back, 303)
    answer.set_cookie(
        COOKIE, value, max_age=LASTS_S, path="/", httponly=True, samesite="strict", secure=is_https(request)
    )
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Forget the cookie. It is worthless to nobody but this browser, so that no form token is asked for."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer
