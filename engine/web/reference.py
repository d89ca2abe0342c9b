"""``GET /docs``: the reference of the API, drawn on the server out of the OpenAPI document; no script, nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.web.page.render import render
from engine.web.page.routes import PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

METHODS = ("get", "post", "put", "patch", "delete")
KIND_MOST = 200  # characters


@router.get("/docs")
def reference(request: Request) -> Response:
    """The whole reference on one page."""
    document = request.app.openapi()
    return render(request, "reference.html", page="docs", api=document, calls=calls(document), models=models(document))


def calls(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every call: method, path, summary, about (paragraphs), parameters, bodies, answers."""
    return [_call(document, path, method, about) for path, method, about in _operations(document)]


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document.get("paths", {}).items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def _call(document: Mapping[str, Any], path: str, method: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "anchor": re.sub(r"[^a-z0-9]+", "-", f"{method}-{path}".lower()).strip("-"),
        "method": method.upper(),
        "path": path,
        "summary": about.get("summary", ""),
        "about": paragraphs(about.get("description", "")),
        "parameters": [
            {
                "name": one["name"],
                "where": one["in"],
                "required": one.get("required", False),
                "kind": kind_of(one.get("schema", {})),
                "about": one.get("description") or one.get("schema", {}).get("description", ""),
            }
            for one in (resolved(document, given) for given in about.get("parameters", ()))
        ],
        "bodies": [
            {
                "type": media,
                "fields": fields(document, content.get("schema", {})),
                "example": example_of(document, content),
            }
            for media, content in about.get("requestBody", {}).get("content", {}).items()
        ],
        "answers": [_answer(document, status, given) for status, given in about.get("responses", {}).items()],
    }


def _answer(document: Mapping[str, Any], status: str, given: Mapping[str, Any]) -> dict[str, Any]:
    answer = resolved(document, given)
    content = answer.get("content", {})
    first: Mapping[str, Any] = next(iter(content.values()), {})
    # A problem looks the same everywhere: its model shows it once.
    shown = example_of(document, first) if str(status).startswith("2") else ""
    return {
        "status": status,
        "about": " ".join(str(answer.get("description", "")).split()),
        "types": list(content),
        "model": name_of(first.get("schema", {})),
        "example": shown,
    }


def models(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every schema that has a name: name, about, fields, example."""
    found = document.get("components", {}).get("schemas", {})
    return [
        {
            "name": name,
            "about": " ".join(str(schema.get("description", "")).split()),
            "fields": fields(document, schema),
            "example": example_of(document, {"schema": schema}),
        }
        for name, schema in sorted(found.items())
    ]


def fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The properties of an object, the needed ones first."""
    whole = resolved(document, schema)
    needed = whole.get("required", ())
    found = [
        {"name": name, "required": name in needed, "kind": kind_of(part), "about": part.get("description", "")}
        for name, part in whole.get("properties", {}).items()
        if isinstance(part, Mapping)
    ]
    return sorted(found, key=lambda row: not row["required"])


def kind_of(schema: Mapping[str, Any]) -> str:
    """What a value may be, in a few words: ``integer 1 to 100, default 20``."""
    if "$ref" in schema:
        return name_of(schema)
    some = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if some:
        text = " or ".join(dict.fromkeys(kind_of(part) for part in some))
    elif "const" in schema:
        text = json.dumps(schema["const"])
    elif "enum" in schema:
        text = " ".join(str(value) for value in schema["enum"])
    elif schema.get("type") == "array":
        text = f"list of {kind_of(schema.get('items', {}))}"
    else:
        given = schema.get("format") or schema.get("type") or "anything"
        text = " or ".join(map(str, given)) if isinstance(given, list) else str(given)
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        text += f" {least:,} to {most:,}"
    elif least is not None or most is not None:
        text += f" {'from' if most is None else 'up to'} {(least if most is None else most):,}"
    if "maxLength" in schema:
        text += f" of up to {schema['maxLength']:,} characters"
    if schema.get("default") is not None:
        text += f", default {json.dumps(schema['default'])}"
    return text[:KIND_MOST]


def name_of(schema: Mapping[str, Any]) -> str:
    """The name of a schema that is told elsewhere; empty: it is told here."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def resolved(document: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference within the document leads to; anything else is itself."""
    found: Any = given
    for _ in range(5):
        if not isinstance(found, Mapping) or "$ref" not in found:
            break
        at: Any = document
        for part in str(found["$ref"]).removeprefix("#/").split("/"):
            at = at.get(part, {}) if isinstance(at, Mapping) else {}
        found = at
    return found if isinstance(found, Mapping) else {}


def example_of(document: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """The first example of a body or of its schema, as people read it; empty: none."""
    schema = resolved(document, content.get("schema", {}))
    found = content.get("example")
    if found is None and content.get("examples"):
        first = next(iter(content["examples"].values()))
        found = resolved(document, first).get("value")
    if found is None and schema.get("examples"):
        found = schema["examples"][0]
    if found is None:
        found = schema.get("example")
    if found is None:
        return ""
    return found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False)


def paragraphs(text: str) -> list[str]:
    """A description as plain paragraphs; lists of it one line each."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.strip().splitlines()
        if lines and all(line.lstrip().startswith("-") or line.startswith(" ") for line in lines):
            found += [line.strip() for line in lines]
        elif block.strip():
            found.append(" ".join(block.split()))
    return found
