"""JSON schemas of human input: whether a schema makes sense, whether a value fits. Pure; nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DATA = frozenset(("const", "enum", "default", "examples"))  # keywords whose values are data, not schemas
_SHOWN = 3


def problem_of(schema: Mapping[str, Any] | bool) -> str | None:
    """What is wrong with a schema, in words; None: nothing.

    A schema may refer to its own parts only (``#/$defs/...``): a graph is a snapshot, and the network no part of it.
    """
    from jsonschema.exceptions import SchemaError

    try:
        validator = _validator(schema)
        type(validator).check_schema(schema)
        for reference in _references(schema):
            if not reference.startswith("#"):
                return f"refers to {reference!r}; only parts of the schema itself (#/...) can be referred to"
        validator.is_valid(None)
        for reference in _references(schema):  # one to a part that is not there, or to itself, shows with any value
            validator.evolve(schema={"$ref": reference}).is_valid(None)
    except SchemaError as error:
        return f"{_where(error.absolute_path)}{error.message}"
    except RecursionError:
        return "is nested too deeply, or refers to itself without an end"
    except Exception as error:  # an unknown dialect, a reference to nowhere: the library has many names for it
        return f"cannot be used: {' '.join(str(error).split())[:200]}"
    return None


def misfits(value: Any, schema: Mapping[str, Any] | bool) -> str | None:
    """Why a value does not fit a schema, in one line, where it is deepest first; None: it fits."""
    try:
        errors = sorted(_validator(schema).iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    except RecursionError:
        return "it is nested too deeply"
    if not errors:
        return None
    told = [f"{_where(error.absolute_path)}{' '.join(error.message.split())[:300]}" for error in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        told.append(f"and {len(errors) - _SHOWN} more")
    return "; ".join(told)


def _validator(schema: Mapping[str, Any] | bool) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    known: Registry[Any] = Registry()  # without this the library would fetch a foreign reference from the network
    return validator_for(schema, default=Draft202012Validator)(schema, registry=known)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif key not in _DATA:
                yield from _references(value)
    elif isinstance(schema, list | tuple):
        for item in schema:
            yield from _references(item)


def _where(path: Any) -> str:
    at = ".".join(map(str, path))
    return f"{at}: " if at else ""
