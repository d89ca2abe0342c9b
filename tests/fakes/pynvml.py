"""Stands in for NVIDIA's bindings in another process: put this directory in front of its PYTHONPATH (gpus.Gpus.env).

Cards and driver come from a JSON file that a test rewrites at will; it is read again at every call. How functions
answer is that of tests/telemetry/nvml.py; errors, constants and structures are those of the real bindings.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_MIB = 1024 * 1024


def _load(name: str, spec: importlib.machinery.ModuleSpec | None) -> Any:
    assert spec is not None and spec.loader is not None, name
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _bindings_and_fake() -> tuple[Any, Any]:
    """The real bindings, though this file hides them, and the fake of the tests of telemetry on top of them."""
    hidden = sys.modules["pynvml"]
    others = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
    try:
        real = _load("pynvml", importlib.machinery.PathFinder.find_spec("pynvml", others))
        path = _HERE.parent / "telemetry" / "nvml.py"
        fake = _load("_fake_nvml", importlib.util.spec_from_file_location("_fake_nvml", path))
    finally:
        sys.modules["pynvml"] = hidden
    return real, fake


_real, _fake = _bindings_and_fake()
_nvml = _fake.FakeNvml()
NVMLError = _real.NVMLError


def _answer(value: Any, wrap: Callable[[Any], Any] = lambda value: value) -> Any:
    if isinstance(value, dict) and value.get("hang"):
        return _Hang()
    if isinstance(value, dict) and "error" in value:
        return _fake.Refuse(getattr(_real, f"NVML_ERROR_{value['error']}"))
    return wrap(value)


class _Hang:
    """An answer that never comes."""


def _card(state: dict[str, Any]) -> Any:
    make = _fake.gb10 if state["kind"] == "gb10" else _fake.ordinary
    card = make(state["uuid"])
    card.bus, card.name, card.lost = state["bus"], state["name"], state["lost"]
    used, total = state["used_mb"], state["total_mb"]

    def memory(mb: Any) -> Any:
        return types.SimpleNamespace(used=int(mb * _MIB), total=total * _MIB, free=int((total - mb) * _MIB))

    def processes(rows: Any) -> Any:
        return [
            types.SimpleNamespace(pid=row["pid"], usedGpuMemory=None if row["mb"] is None else int(row["mb"] * _MIB))
            for row in rows
        ]

    card.answers["nvmlDeviceGetUtilizationRates"] = _answer(
        state["util"], lambda util: types.SimpleNamespace(gpu=util, memory=0)
    )
    if state["kind"] != "gb10":
        card.answers["nvmlDeviceGetMemoryInfo"] = _answer(used, memory)
    card.answers["nvmlDeviceGetTemperature"] = _answer(state["temp_c"])
    card.answers["nvmlDeviceGetComputeRunningProcesses"] = _answer(state["processes"], processes)
    card.answers["nvmlDeviceGetGraphicsRunningProcesses"] = []
    card.answers |= {name: _answer(value) for name, value in state["answers"].items()}
    return card


_read: tuple[Any, dict[str, Any], Any] | None = None  # which file, what it said, the card of all answers
_taken: Any = None  # which file the cards were made from


def _state() -> dict[str, Any]:
    """What the file says; read anew when it is another one."""
    global _read
    path = Path(os.environ["FAKE_NVML_STATE"])
    found = path.stat()
    stamp = found.st_ino, found.st_mtime_ns, found.st_size
    if _read is None or _read[0] != stamp:
        state = json.loads(path.read_text())
        known = _fake.ordinary()
        known.answers |= {"nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetGraphicsRunningProcesses": []}
        for card in state["cards"]:
            known.answers |= card["answers"]
        _read = stamp, state, known
    return _read[1]


def _look() -> None:
    """Take over what the file says now."""
    global _taken
    while (state := _state())["hang"]:
        time.sleep(0.02)
    if _read is None or _taken == _read[0]:
        return
    _taken = _read[0]
    error = state["start_error"]
    _nvml.start_error = getattr(_real, f"NVML_ERROR_{error}") if error else None
    _nvml.driver = state["driver"]
    _nvml.cards = [_card(card) for card in state["cards"]]


def _now(handle: Any) -> Any:
    """The card of a handle as it is now; handles outlive the state they were made from."""
    if not isinstance(handle, _fake.Card):
        return handle
    return next((card for card in _nvml.cards if card.uuid == handle.uuid), handle)


def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> Any:
    _look()
    wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
    for index, card in enumerate(_nvml.cards):
        if card.uuid == wanted:
            return _nvml.nvmlDeviceGetHandleByIndex(index)
    raise NVMLError(_real.NVML_ERROR_NOT_FOUND)


def __getattr__(name: str) -> Any:
    if not name.startswith("nvml") or name == "nvmlExceptionClass":
        return getattr(_real, name)
    if not hasattr(_nvml, name) and not any(name in card.answers for card in [_card_of_all_answers()]):
        raise AttributeError(name)  # a function that these bindings lack

    def call(*args: Any) -> Any:
        _look()
        args = tuple(_now(arg) for arg in args)
        function = getattr(_nvml, name, None) or _nvml._reader(name)
        answer = function(*args)
        if isinstance(answer, _Hang):
            time.sleep(3600)
        return answer

    return call


def _card_of_all_answers() -> Any:
    _state()
    assert _read is not None
    return _read[2]
