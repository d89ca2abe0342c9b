"""References inside a graph's inputs: ``$from``, ``$context``, ``$default``. Pure.

``{"$from": "fetch.rows"}`` stands for a part of a node's output, ``{"$context": "key"}`` for a part of what was
submitted; both may carry ``"$default"``. Lists and objects are walked, anything else is a literal. What a reference
stands for is data: references inside an output or a context are never followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
MAX_DEPTH = 64

_MISSING: Final = object()


class BadReference(ValueError):
    """The shape of a reference or of a skip_if is wrong; the text says how."""


class Unresolved(ValueError):
    """A reference stands for nothing and has no default; the text says which and why."""


@dataclass(frozen=True)
class Ref:
    """One reference: ``node`` is None for ``$context``; ``path`` holds keys and list positions."""

    node: str | None
    path: tuple[str, ...]
    text: str
    default: Any = _MISSING

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING

    def __str__(self) -> str:
        return json.dumps({"$context" if self.node is None else "$from": self.text})


def parse(value: Mapping[str, Any]) -> Ref | None:
    """The reference that an object is, or None where it is an ordinary object. Raises BadReference."""
    keys = [key for key in ("$from", "$context") if key in value]
    if not keys:
        return None
    if len(keys) == 2:
        raise BadReference("an object has $from and $context; a reference has one of them")
    (key,) = keys
    if extra := [str(k) for k in value if k not in (key, "$default")]:
        raise BadReference(
            f"a {key} reference has other keys too ({', '.join(sorted(extra))}); only $default may stand there"
        )
    text = value[key]
    if not isinstance(text, str) or not text:
        raise BadReference(f"{key} wants a non-empty text, got {json.dumps(text, default=str)[:80]}")
    parts = tuple(text.split("."))
    default = value.get("$default", _MISSING)
    if key == "$context":
        return Ref(None, parts, text, default)
    if not all(parts) or not NODE_ID.fullmatch(parts[0]):
        raise BadReference(f'$from wants "node" or "node.key.key", got {json.dumps(text)[:80]}')
    return Ref(parts[0], parts[1:], text, default)


def refs_in(value: Any, depth: int = 0) -> Iterator[Ref]:
    """Every reference in a value, those inside defaults too. Raises BadReference; also for nesting beyond MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise BadReference(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        if ref := parse(value):
            yield ref
            if ref.has_default:
                yield from refs_in(ref.default, depth + 1)
        else:
            for item in value.values():
                yield from refs_in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs_in(item, depth + 1)


def resolve(
    value: Any, context: Mapping[str, Any], outputs: Mapping[str, Any], weigh: Callable[[Any], None] | None = None
) -> Any:
    """``value`` with every reference replaced.

    ``outputs`` holds the outputs of completed nodes; a node that is not in it has none. ``weigh`` sees everything that
    a reference stands for, as it is found, and may raise to say that it is too much. Raises Unresolved.
    """
    if isinstance(value, Mapping):
        if ref := parse(value):
            return _look_up(ref, context, outputs, weigh)
        return {key: resolve(item, context, outputs, weigh) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, context, outputs, weigh) for item in value]
    return value


def _look_up(
    ref: Ref, context: Mapping[str, Any], outputs: Mapping[str, Any], weigh: Callable[[Any], None] | None
) -> Any:
    problem = None
    found: Any = None
    if ref.node is None and ref.text in context:  # a key that contains dots
        found = context[ref.text]
    elif ref.node is None:
        found, problem = _walk(context, ref.path, "the context")
    elif ref.node not in outputs:
        problem = f"node {ref.node!r} has no output (it was skipped)"
    else:
        found, problem = _walk(outputs[ref.node], ref.path, f"the output of node {ref.node!r}")
    if problem is None:
        if weigh is not None:
            weigh(found)
        return found
    if ref.has_default:
        return resolve(ref.default, context, outputs, weigh)
    raise Unresolved(f"{ref} cannot be resolved: {problem}")


def _walk(value: Any, path: tuple[str, ...], whose: str) -> tuple[Any, str | None]:
    for position, part in enumerate(path):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None, f"{whose} has no {'.'.join(path[: position + 1])!r}"
    return value, None


def check_skip_if(value: Any) -> None:
    """Raises BadReference unless it is ``{"$eq": [a, b]}`` or ``{"$ne": [a, b]}``."""
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in ("$eq", "$ne"):
        raise BadReference('skip_if wants {"$eq": [a, b]} or {"$ne": [a, b]}')
    pair = next(iter(value.values()))
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise BadReference("skip_if compares exactly two values, in a list")


def skips(skip_if: Mapping[str, Any], context: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
    """Whether a node's ``skip_if`` holds. Raises Unresolved."""
    (operator, (left, right)) = next(iter(skip_if.items()))
    equal = json_equal(resolve(left, context, outputs), resolve(right, context, outputs))
    return equal if operator == "$eq" else not equal


def json_equal(left: Any, right: Any) -> bool:
    """Equality as JSON has it: 1 equals 1.0, but true is not 1; lists equal tuples."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(json_equal(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return bool(left == right)
