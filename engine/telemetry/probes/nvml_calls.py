"""Asking one NVIDIA card through NVML: which call answers, which never will, and what a failure means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# nvmlReturn_t
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 1, 2, 3, 4, 9
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH = 13, 15, 16, 18
ARGUMENT_VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND = 25, 26, 28
_NEVER = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED)  # permanent: asked once

NOT_OFFERED = "not offered by this GPU or driver"
REASONS = {  # where more can be said than that
    "fan_pct": "no fan tach: not offered by this GPU",
    "fan_rpm": "no fan tach: not offered by this GPU",
    "power_limit_w": "the firmware tells no limit",
}
WORDS = {  # what an operator has to know of an error, besides the driver's own words
    RESET_REQUIRED: "the GPU needs a reset",
    LIB_RM_VERSION_MISMATCH: "the driver was upgraded: reboot, or reload its modules",
    DRIVER_NOT_LOADED: "the driver is not loaded",
}

_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t

Field = int | tuple[int, int]  # an id, or one with a scope


def text(value: str | bytes) -> str:
    """A text of the bindings, which hand out bytes at times."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Lost(Exception):
    """The card has fallen off the bus or needs a reset."""


class DriverGone(Exception):
    """NVML itself has to be started again."""


class Calls:
    """What one card, by its ``handle``, was asked and will not be asked again; ``absent`` has reasons by column."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.absent: dict[str, str] = {}
        self._never: set[str] = set()  # calls and fields that this card or driver will never answer
        self._asked = self._answered = False

    def _call(self, nvml: Any, column: str, function: str, *args: Any) -> Any:
        """The answer, or None with the reason in ``absent``. Raises Lost, DriverGone."""
        key = f"{function}({', '.join(map(str, args))})"
        call: Callable[..., Any] | None = getattr(nvml, function, None)
        if key in self._never or call is None:
            self.absent.setdefault(column, REASONS.get(column, NOT_OFFERED))
            return None
        self._asked = True
        try:
            answer = call(self.handle, *args)
        except nvml.NVMLError as error:
            self._failed(error.value, key, column, str(error))
            return None
        except UnicodeDecodeError:
            return None
        self._answered = True
        return answer

    def _first(self, nvml: Any, column: str, *calls: tuple[Any, ...]) -> Any:
        """The answer of the first call that gives one: a function whose name or place moved."""
        for function, *args in calls:
            if (answer := self._call(nvml, column, function, *args)) is not None:
                self.absent.pop(column, None)
                return answer
        return None

    def _failed(self, code: int, key: str, column: str, words: str) -> None:
        words = f"{WORDS[code]} ({words})" if code in WORDS else words
        if code in (GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND):
            raise Lost(words)
        if code in (UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH):
            raise DriverGone(f"NVML: {words}")
        if code in _NEVER:
            self._never.add(key)
            self._answered = True  # a refusal is an answer: the card is there
        self.absent[column] = REASONS.get(column, NOT_OFFERED) if code in _NEVER else words

    def _fields(self, nvml: Any, wanted: Iterable[Field]) -> Mapping[Field, Any]:
        """Field values in one call. It succeeds while single fields do not; that none is offered may fail it as a whole."""
        asked = [field for field in wanted if f"field {field}" not in self._never]
        if not asked:
            return {}
        found: dict[Field, Any] = {}
        answer = self._call(nvml, "fields", "nvmlDeviceGetFieldValues", asked)
        if self.absent.pop("fields", None) is not None and f"nvmlDeviceGetFieldValues({asked})" in self._never:
            self._never |= {f"field {field}" for field in asked}
        for field, item in zip(asked, answer or (), strict=False):
            if item.nvmlReturn == 0:
                if 0 <= item.valueType < len(_VALUE):
                    found[field] = getattr(item.value, _VALUE[item.valueType])
            elif item.nvmlReturn in (*_NEVER, INVALID_ARGUMENT):  # an id that this driver has never heard of
                self._never.add(f"field {field}")
        return found
