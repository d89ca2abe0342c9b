"""One call of user code: which function, its inputs and ``ctx``, and what it returned or raised as bytes for the lane.

Nothing that user code raises leaves here, ``SystemExit`` included.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine import config, registry
from engine.context import Context, JobInfo
from engine.errors import EngineError, PayloadError, UnknownTask
from engine.lane import hooks, protocol
from engine.lane.models import WarmModel
from engine.queue.texts import encode_payload

log = logging.getLogger("engine.lane.executor")
_loads = json.loads  # as it was before user code could put something else there
_HOUSE = str(Path(__file__).parent)  # frames from here are ours, not the user's


class Caller:
    """Calls nodes and tasks, one at a time. ``is_cancelled(number)``: whether that hand-over was asked to stop."""

    def __init__(
        self,
        *,
        box: str,
        worker: str,
        out_root: Path,
        model: WarmModel,
        report: Callable[..., None],
        is_cancelled: Callable[[int], bool],
    ) -> None:
        self._box, self._worker, self._out_root = box, worker, out_root
        self._model, self._report, self._is_cancelled = model, report, is_cancelled
        self._wants_ctx: dict[Callable[..., Any], bool] = {}
        self.ctx: Context | None = None  # of the last job that asked for one

    def call(self, frame: protocol.Frame) -> tuple[str, bytes]:
        """Run the job of this frame: (completed, result JSON), (failed, error text), or (refused, error text) where the row
        itself is at fault: another attempt would end in the same way."""
        head = frame.header
        try:
            try:
                fn, inputs = _function(head), _inputs(frame)
            except (UnknownTask, PayloadError) as error:
                return "refused", f"{type(error).__name__}: {error}".encode(errors="replace")
            if head.get("model"):
                self._model.ensure(head["model"])
            result = self._invoke(fn, inputs, head)
            if result is None:
                return "completed", b""
            if not isinstance(result, Mapping):
                raise PayloadError(f"{head['name']} returned a {type(result).__name__}; a dict or None is expected")
            return "completed", encode_payload(dict(result), f"the result of {head['name']}").encode()
        except EngineError as error:
            return "failed", f"{type(error).__name__}: {error}".encode(errors="replace")
        except BaseException as error:  # SystemExit too: user code must not end the executor by raising
            text = describe(error)
            with contextlib.suppress(Exception):
                log.error("job %s (%s) failed\n%s", head["id"], head["name"], text)
            return "failed", text.encode(errors="replace")
        finally:
            if head.get("model"):
                self._model.used()

    def _invoke(self, fn: Callable[..., Any], inputs: dict[str, Any], head: Mapping[str, Any]) -> Any:
        wants = self._wants_ctx.get(fn)
        if wants is None:
            with contextlib.suppress(TypeError, ValueError):
                wants = "ctx" in inspect.signature(fn).parameters
            self._wants_ctx[fn] = wants = bool(wants)
        if not wants and config.hook("invoke_context") is None:
            return _awaited(fn(**inputs))
        self.ctx = ctx = self._context(head)
        if wants:
            inputs = {**inputs, "ctx": ctx}
        result = None
        with hooks.surrounded(ctx):
            result = _awaited(fn(**inputs))
        return result

    def _context(self, head: Mapping[str, Any]) -> Context:
        number = int(head["no"])
        job = JobInfo(
            id=int(head["id"]),
            family_name=head["family"],
            name=head["name"],
            queue=head["queue"],
            project=head["project"],
            box=self._box,
            attempt=int(head["attempt"]),
            fencing_token=int(head["token"]),
            worker=self._worker,
            run_id=head.get("run"),
            node_id=head.get("node"),
            required_model=head.get("model"),
            priority=int(head.get("priority", 100)),
            is_priority=bool(head.get("next")),
        )
        return Context(
            job,
            report=self._report,
            cancelled=lambda: self._is_cancelled(number),
            model=self._model.value,
            out_root=self._out_root,
        )


def _function(head: Mapping[str, Any]) -> Callable[..., Any]:
    return registry.resolve_node(head["name"]) if head["family"] == "node" else registry.resolve_task(head["name"]).fn


def _inputs(frame: protocol.Frame) -> dict[str, Any]:
    name = frame.header["name"]
    try:
        inputs = _loads(frame.payload) if frame.payload else {}
    except ValueError as error:
        raise PayloadError(f"inputs of {name} are not JSON: {error}") from None
    if not isinstance(inputs, dict):
        raise PayloadError(f"inputs of {name} are a {type(inputs).__name__}, not an object")
    return inputs


def _awaited(result: Any) -> Any:
    if inspect.iscoroutine(result):
        import asyncio  # a third of what an executor imports; few tasks need it

        return asyncio.run(result)
    return result


def describe(error: BaseException) -> str:
    """``ValueError: text`` and the traceback below the house's own frames; the head and the end stay when it is long."""
    frames = error.__traceback__
    while frames is not None and str(Path(frames.tb_frame.f_code.co_filename).parent) == _HOUSE:
        frames = frames.tb_next
    head = "".join(traceback.format_exception_only(error)).strip()
    body = "".join(traceback.format_exception(type(error), error, frames)) if frames is not None else ""
    limit = int(config.get("error_limit"))
    room = max(0, limit - len(head) - 2)
    if len(body) > room:
        body = "..." + body[len(body) - max(0, room - 3) :] if room > 3 else ""
    return f"{head}\n\n{body}".strip()[:limit]
