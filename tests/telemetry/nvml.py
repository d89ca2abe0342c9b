"""A stand-in for the NVML bindings: a module with their functions over cards whose answers a test sets.

Answers and refusals are those that HARDWARE notes report of real drivers; errors and structures are the bindings' own.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import pynvml

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
MIB = 1024 * 1024


@dataclass
class Card:
    """``answers`` by function name (an int under 1000 wrapped in Refuse is an error code); ``fields`` by id."""

    uuid: str
    bus: str = "00000000:01:00.0"
    name: str = "NVIDIA RTX 4090"
    lost: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    fields: dict[Any, int | None] = field(default_factory=dict)
    slices: list[Card] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Refuse:
    code: int


def ordinary(uuid: str = "GPU-1", **changes: Any) -> Card:
    """A card that answers everything."""
    card = Card(uuid, **changes)
    card.answers = {
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=96, memory=40),
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=8192 * MIB, total=24576 * MIB, free=16384 * MIB),
        "nvmlDeviceGetPowerUsage": 401_500,
        "nvmlDeviceGetEnforcedPowerLimit": 450_000,
        "nvmlDeviceGetTemperature": 71,
        "nvmlDeviceGetTemperatureThreshold": {0: 95, 1: 92},
        "nvmlDeviceGetClockInfo": {1: 2520, 0: 2520},
        "nvmlDeviceGetMaxClockInfo": {1: 3105, 0: 3105},
        "nvmlDeviceGetFanSpeed": 54,
        "nvmlDeviceGetFanSpeedRPM": 1890,
        "nvmlDeviceGetCurrPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetPerformanceState": 2,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetTotalEccErrors": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetAddressingMode": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        "nvmlDeviceGetMigMode": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetRemappedRows": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetViolationStatus": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetMarginTemperature": Refuse(NOT_SUPPORTED),
        "nvmlDeviceGetMaxMigDeviceCount": 0,
    } | card.answers
    card.fields = {82: 84, 186: 412_000} | dict.fromkeys((74, 75, 76, 269, 270, 271), 0) | card.fields
    return card


def gb10(uuid: str = "GPU-GB10") -> Card:
    """A DGX Spark: no memory, fan, limit or PCIe of its own, and a memory temperature of 0 that means nothing."""
    nothing = Refuse(NOT_SUPPORTED)
    return ordinary(
        uuid,
        bus="0000000F:01:00.0",
        name="NVIDIA GB10",
        answers={
            "nvmlDeviceGetMemoryInfo": nothing,
            "nvmlDeviceGetEnforcedPowerLimit": nothing,
            "nvmlDeviceGetFanSpeed": nothing,
            "nvmlDeviceGetFanSpeedRPM": nothing,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 1,
            "nvmlDeviceGetPowerUsage": 67_000,
            "nvmlDeviceGetAddressingMode": 2,
        },
        fields={82: 0, 186: None},
    )


class FakeNvml(types.ModuleType):
    """The module; ``cards`` in NVML's order. A card that is lost is still counted but refuses everything."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *cards: Card, driver: str = "580.95.05") -> None:
        super().__init__("pynvml")
        self.cards = list(cards)
        self.driver = driver
        self.running = False
        self.starts = 0
        self.start_error: int | None = None
        self.hang: Any = None  # an event that every reading waits for
        self.events: list[tuple[Card, int, int]] = []  # card, type, data: to be taken by who waits
        self.has_events = True
        self.event_sets = 0
        for function in ordinary().answers:
            setattr(self, function, self._reader(function))

    def nvmlInit(self) -> None:
        if self.start_error:
            raise pynvml.NVMLError(self.start_error)
        self.running = True
        self.starts += 1

    def nvmlInitWithFlags(self, flags: int) -> None:
        assert flags == 2
        self.nvmlInit()

    def nvmlShutdown(self) -> None:
        self.running = False

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._check()
        card = self.cards[index]
        card.calls.append("handle")
        if card.lost:
            raise pynvml.NVMLError(LOST)
        return card

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> Card:
        self._check()
        for card in self.cards:
            if card.bus.lower().endswith(bus.lower()[-12:]):
                card.calls.append("handle")
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        self._check(card)
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        self._check(card)
        return card.name

    def nvmlDeviceGetIndex(self, card: Card) -> int:
        self._check(card)
        return [c for c in self.cards if not c.lost].index(card)

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:
        self._check(card)
        return types.SimpleNamespace(busId=card.bus)

    def nvmlDeviceGetFieldValues(self, card: Card, ids: list[Any]) -> Any:
        self._check(card)
        card.calls.append("nvmlDeviceGetFieldValues")
        values = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for value, wanted in zip(values, ids, strict=True):
            number, value.scopeId = wanted if isinstance(wanted, tuple) else (wanted, 0)
            value.fieldId = number
            found = card.fields.get(wanted)
            if found is None:
                value.nvmlReturn = NOT_SUPPORTED
                continue
            wide = number in (74, 75, 76, 197, 198) or number >= 251
            value.valueType = 5 if found < 0 else 3 if wide else 1
            setattr(value.value, {5: "siVal", 3: "ullVal", 1: "uiVal"}[value.valueType], found)
        if all(value.nvmlReturn != 0 for value in values):
            raise pynvml.NVMLError(NOT_SUPPORTED)  # none of them: the call fails as a whole
        return values

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, place: int) -> Card:
        if place >= len(card.slices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return card.slices[place]

    def nvmlDeviceGetSupportedEventTypes(self, card: Card) -> int:
        self._check(card)
        if not self.has_events:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return 0xC009

    def nvmlEventSetCreate(self) -> list[Card]:
        self.event_sets += 1
        return []

    def nvmlDeviceRegisterEvents(self, card: Card, types: int, registered: list[Card]) -> None:
        self._check(card)
        registered.append(card)

    def nvmlEventSetWait_v2(self, registered: list[Card], timeout_ms: int) -> Any:
        assert timeout_ms == 0, "a look never waits"
        for event in self.events:
            if event[0] in registered:
                self.events.remove(event)
                return types.SimpleNamespace(device=event[0], eventType=event[1], eventData=event[2])
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, registered: list[Card]) -> None:
        self.event_sets -= 1

    def _check(self, card: Card | None = None) -> None:
        if self.hang is not None:
            self.hang.wait()
        if not self.running:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if card is not None and card.lost:
            raise pynvml.NVMLError(LOST)

    def _reader(self, function: str) -> Any:
        def read(card: Card, *args: int) -> Any:
            self._check(card)
            card.calls.append(function)
            answer = card.answers[function]
            if isinstance(answer, dict):
                answer = answer[args[0]]
            if isinstance(answer, Refuse):
                raise pynvml.NVMLError(answer.code)
            return answer

        return read
