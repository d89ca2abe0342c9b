"""What the host registers: nodes, ingest tasks, models, workflows. Names are the only thing that a row can say."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine import config
from engine.errors import BadInput, ConfigError, HookError, UnknownTask
from engine.tasks.train import train

NodeFn = Callable[..., "Mapping[str, Any] | None"]
Misfire = Literal["skip", "one", "all"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


@dataclass(frozen=True)
class Task:
    """An ingest task: its function, its wall-clock budget in seconds (None: the default), its attempts."""

    name: str
    fn: NodeFn
    budget_s: float | None = None
    max_attempts: int = 1


@dataclass(frozen=True)
class Model:
    """A model that a gpu slot can hold; ``est_vram_gb`` in GiB."""

    id: str
    loader: Callable[[], Any]
    unloader: Callable[[Any], None] | None = None
    est_vram_gb: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A cron entry that the app brings along; ``args`` as JSON text, ``jitter_s`` in seconds."""

    name: str
    cron: str
    task_name: str
    queue: str
    args: str = "{}"
    tz: str = "UTC"
    misfire: Misfire = "one"
    jitter_s: float = 0.0


nodes: dict[str, NodeFn] = {}
_BUILT_IN = (Task("train", train),)  # a host's own registration of the name replaces it
tasks: dict[str, Task] = {task.name: task for task in _BUILT_IN}
models: dict[str, Model] = {}
workflows: dict[str, Any] = {}
schedules: dict[str, Schedule] = {}


def reset() -> None:
    """Forget everything that was registered (tests)."""
    for table in (nodes, tasks, models, workflows, schedules):
        table.clear()
    tasks.update((task.name, task) for task in _BUILT_IN)


def _checked(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is not a {what} name (letters, digits, _ . : / -)")
    return name


def _check_callable(value: Any, what: str) -> None:
    if not callable(value):
        raise BadInput(f"{what} must be callable, got {type(value).__name__}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def register_node(name: str, fn: NodeFn) -> NodeFn:
    """Make ``fn`` the node ``name``; a later registration replaces an earlier one."""
    _checked(name, "node")
    _check_callable(fn, f"node {name}: its function")
    nodes[name] = fn
    return fn


def node(name: str) -> Callable[[NodeFn], NodeFn]:
    """Decorator form of :func:`register_node`."""
    return lambda fn: register_node(name, fn)


def register_ingest_task(name: str, fn: NodeFn, budget_s: float | None = None, max_attempts: int = 1) -> NodeFn:
    """Make ``fn`` the ingest task ``name``. ``budget_s``: wall clock in seconds; ``max_attempts`` >= 1."""
    _checked(name, "task")
    _check_callable(fn, f"task {name}: its function")
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 1_000_000:
        raise BadInput(f"task {name}: max_attempts must be a whole number from 1, got {max_attempts!r}")
    if budget_s is not None and not (_is_number(budget_s) and budget_s > 0):
        raise BadInput(f"task {name}: budget_s must be a positive number of seconds, got {budget_s!r}")
    tasks[name] = Task(name, fn, budget_s, max_attempts)
    return fn


def ingest_task(name: str, budget_s: float | None = None, max_attempts: int = 1) -> Callable[[NodeFn], NodeFn]:
    """Decorator form of :func:`register_ingest_task`."""
    return lambda fn: register_ingest_task(name, fn, budget_s, max_attempts)


def register_model(
    id: str, loader: Callable[[], Any], unloader: Callable[[Any], None] | None = None, est_vram_gb: float = 0.0
) -> None:
    """Make a model known by ``id``; ``loader`` returns it, ``unloader`` gets it back."""
    _checked(id, "model")
    _check_callable(loader, f"model {id}: its loader")
    if unloader is not None:
        _check_callable(unloader, f"model {id}: its unloader")
    if not _is_number(est_vram_gb) or est_vram_gb < 0:
        raise BadInput(f"model {id}: est_vram_gb must be a number of GiB from 0, got {est_vram_gb!r}")
    models[id] = Model(id, loader, unloader, float(est_vram_gb))


def register_workflow(name: str, graph: Any) -> None:
    """Make a graph known by ``name``, for submit_run(name). The graph is validated when it is submitted."""
    workflows[_checked(name, "workflow")] = graph


def add_schedule(schedule: Schedule) -> None:
    """Make a cron entry known that was checked before; a later one of the same name replaces it."""
    schedules[_checked(schedule.name, "schedule")] = schedule


def load_app(app: str | None = None) -> None:
    """Import the host module that registers everything (``--app``, FLIGHTDECK_APP), then run the model hook.

    The working directory is searched last, as it is for a lane's executors. Raises ConfigError, one line that names file
    and line, for code that cannot work; anything else that the module raises goes through.
    """
    name = app or config.get("app")
    if name:
        if not all(part and "/" not in part for part in str(name).split(".")):
            raise ConfigError(f"--app {name}: is not the name of a module (like myapp.jobs)")
        with contextlib.suppress(FileNotFoundError):  # this directory was removed
            if not {"", os.getcwd()} & set(sys.path):
                sys.path.append(os.getcwd())
        try:
            importlib.import_module(str(name))
        except (ImportError, NameError, SyntaxError) as error:  # what trying again does not mend
            raise ConfigError(f"--app {name}: cannot be imported: {fault(error)}") from error
    call_hook("register_models")


def fault(error: BaseException) -> str:
    """``file:line: Type: text`` of an error in the host's code, as one line.

    The place is the innermost one in a file that is neither ours, nor Python's, nor an installed package's; where all are
    (an installed app), the innermost that is not ours.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    paths = sysconfig.get_paths()
    packages = paths["purelib"] + os.sep, paths["platlib"] + os.sep
    not_theirs = str(Path(__file__).parent) + os.sep, paths["stdlib"] + os.sep, "<"
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith((*not_theirs, *packages))]
    installed = [place for place in places if place[0].startswith(packages) and not place[0].startswith(not_theirs[0])]
    for file, line in reversed(own or installed):
        return f"{file}:{line}: {text}"
    return text


def call_hook(hook: str, *given: Any) -> Any:
    """What the host's hook answers; None where the host has not set it. Raises HookError, one clear line."""
    fn = config.hook(hook)
    if fn is None:
        return None
    try:
        return fn(*given)
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise HookError(f"hook {hook} failed: {type(error).__name__}: {said}") from error


def resolve_node(name: str) -> NodeFn:
    """The function behind a node name.

    Registered names first, then the host's ``resolve_node`` hook, then a module (its ``run``) inside
    ``node_package``. Nothing else is imported because a row says so. Raises UnknownTask.
    """
    if name in nodes:
        return nodes[name]
    if (fn := call_hook("resolve_node", name)) is not None:
        if not callable(fn):
            raise HookError(
                f"hook resolve_node gave a {type(fn).__name__} for node {name!r}; it wants a function or None"
            )
        return fn  # type: ignore[no-any-return]
    package = config.get("node_package")
    if package and _NAME.fullmatch(name) and not any(c in name for c in ":/-") and ".." not in name:
        module_name = name if name.startswith(f"{package}.") else f"{package}.{name}"
        try:
            return importlib.import_module(module_name).run  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise  # the node exists and one of its own imports does not
        except AttributeError:
            raise UnknownTask(f"node {name!r}: module {module_name} has no function run") from None
    raise UnknownTask(f"node {name!r} is not registered and not in the node package ({package or 'none configured'})")


def resolve_task(name: str) -> Task:
    """The ingest task behind a name. Raises UnknownTask."""
    if isinstance(name, str) and name in tasks:
        return tasks[name]
    raise UnknownTask(f"task {name!r} is not registered (known: {', '.join(sorted(tasks)) or 'none'})")
