"""What a form sends: read, bounded, and proven to come from a page of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from fastapi import Request

from engine.errors import BadInput
from engine.web.page.render import nonce_of, sessions_of
from engine.web.page.routes import Refused

Fields = Mapping[str, Sequence[str]]

FIELDS_MOST = 300
FORM_TYPE = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> Fields:
    """The fields by name. Raises BadInput for what is no such form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise BadInput(f"a form is sent as {FORM_TYPE}")
    body = await request.body()
    if b"%00" in body or b"\0" in body:  # PostgreSQL has no text with it
        raise BadInput("a form has no NUL characters")
    try:
        return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MOST)
    except ValueError:
        raise BadInput(f"a form has at most {FIELDS_MOST} fields") from None


def text_of(fields: Fields, name: str) -> str:
    """The one value of a field; empty when it is not there."""
    return (fields.get(name) or [""])[0]


def check_form(request: Request, fields: Fields) -> str:
    """Who sends this form, as an audit row names them. Raises Refused: not allowed, or no form of ours, or too old.

    What a browser sends for another site does not come so far (engine/web/access.py).
    """
    access = request.state.access
    if access.level != "operate":
        raise Refused("this token may look, not change anything")
    if not sessions_of(request).is_form_token(text_of(fields, "form_token"), nonce_of(request)):
        raise Refused("this form is not (or no longer) good: go back, load the page again and repeat it")
    return f"web:{access.name}"


def local_path(given: str | None) -> str:
    """A path of ours to go back to; anything else leads to the fleet."""
    path = given or "/"
    plain = path.isascii() and path.isprintable() and " " not in path and "\\" not in path and len(path) <= 2000
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
