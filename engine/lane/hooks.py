"""The host's ``invoke_context``: what is entered around a call of user code, and whose fault it is when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine import registry
from engine.errors import HookError


@contextmanager
def surrounded(ctx: Any) -> Iterator[None]:
    """Enter what the hook gives for ``ctx``; nothing where there is no hook, or it gives None.

    What user code raises goes through it, as with any context manager. Raises HookError, one clear line, when the hook
    raises, when what it gave cannot be entered, and when leaving it fails although user code did not.
    """
    around = registry.call_hook("invoke_context", ctx)
    if around is None:
        yield
        return
    if not hasattr(around, "__enter__") or not hasattr(around, "__exit__"):
        raise HookError(f"hook invoke_context gave a {type(around).__name__}; it wants a context manager or None")
    when: str | None = "before the job"
    try:
        with around:
            when = None  # from here on it is user code that raises
            yield
            when = "after the job"
    except Exception as error:
        if when is None:
            raise
        said = " ".join(str(error).split())[:300]
        raise HookError(f"hook invoke_context failed {when}: {type(error).__name__}: {said}") from error
