"""What can go wrong, by name. Every text is one line that says what happened, to what, and what to do."""

from __future__ import annotations

from engine.config import ConfigError, EngineError

__all__ = [
    "BacklogFull",
    "BadInput",
    "ConfigError",
    "Conflict",
    "EngineError",
    "GraphError",
    "HookError",
    "NotAllowed",
    "NotFound",
    "PayloadError",
    "PayloadTooLarge",
    "ReadOnlyStore",
    "SchemaMismatch",
    "StaleClaim",
    "StoreError",
    "StoreUnavailable",
    "UnknownQueue",
    "UnknownTask",
]


class StoreError(EngineError):
    """The database did not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached (any more); trying again later may help."""


class ReadOnlyStore(StoreError):
    """The database, or this connection, refuses writes."""


class NotAllowed(StoreError):
    """The login at the database lacks the right to do this; the text says which role has it. Nothing was changed."""


class SchemaMismatch(StoreError):
    """The schema is older or newer than this program can use."""


class BadInput(EngineError, ValueError):
    """The caller's input is refused; nothing was written."""


class UnknownQueue(BadInput):
    """No such queue."""


class UnknownTask(BadInput):
    """The task, node, model or workflow is not registered."""


class PayloadError(BadInput):
    """The payload does not serialise to JSON, or is larger than the limit."""


class PayloadTooLarge(PayloadError):
    """The payload is larger than the limit."""


class BacklogFull(EngineError):
    """So many jobs are queued that the queue takes no more for now; nothing was written. Try again later."""


class GraphError(BadInput):
    """The graph is not valid; the text names the node."""


class Conflict(EngineError):
    """The request contradicts what is there already."""


class HookError(EngineError):
    """A hook of the host raised, or gave what it should not; the text names the hook and says what."""


class NotFound(EngineError, LookupError):
    """No such run, job or box."""


class StaleClaim(EngineError):
    """The claim is no longer ours: owner or fence differ. The caller's transaction must be rolled back."""
