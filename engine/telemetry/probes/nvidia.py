"""NVIDIA GPUs by NVML: what each card says, cards that vanish and return, drivers that come and go.

A card is known by its uuid; it keeps the index that it got first, for NVML renumbers after a loss. A card that the
kernel has put to sleep is not touched. The reading of one card is in nvml_card.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.telemetry.meter import Text
from engine.telemetry.probes import files
from engine.telemetry.probes.gpu import GpuReading
from engine.telemetry.probes.nvml_calls import DriverGone, Lost, text
from engine.telemetry.probes.nvml_card import Card, bus_id, driver_tuple
from engine.telemetry.sample import GpuSample

if TYPE_CHECKING:
    from engine.telemetry.probes.nvidia_smi import Smi
    from engine.telemetry.probes.xid import Xids

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0  # for new cards, and for a driver that was absent
REINIT_S = 60.0  # NVML started before a card was lost may never see it again
_NVIDIA = "0x10de"
_NO_ATTACH = 2  # NVML_INIT_FLAG_NO_ATTACH: starting NVML touches no card


def load_pynvml() -> Any:
    """The NVML bindings, or None when they are not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


class NvidiaProbe:
    """``load`` gives the bindings; ``root`` is where /proc, /sys and /dev are looked for.

    ``watch``: also follow Xids, and hold the throttle counters against what ``nvidia-smi`` prints.
    """

    card_type: type[Card] = Card  # who wants less, or more, of each card names another

    def __init__(
        self,
        root: Path,
        cadence_s: float,
        load: Callable[[], Any] = load_pynvml,
        clock: Callable[[], float] = time.monotonic,
        watch: bool = False,
    ) -> None:
        self._root = root
        self._cadence_s = cadence_s
        self._load = load
        self._clock = clock
        self._nvml: Any = None
        self._started_at = float("-inf")
        self._looked_at = float("-inf")
        self._not_before = float("-inf")
        self._cards: dict[str, Card] = {}
        self._on_bus: list[str] = []  # bus ids, those asleep too
        self._driver: str | None = None
        self._error: str | None = None  # why NVML does not run though there is a card
        self._watch = watch
        self._smi: Smi | None = None
        self._xids: Xids | None = None

    def read(self) -> GpuReading:
        if self._nvml is None and not self._start():
            return self._without_nvml()
        try:
            self._look_for_cards()
            self._look_around()
            gpus = tuple(self._told(card, self._read(card)) for card in self._ordered())
        except DriverGone as gone:
            self._stop(str(gone))
            return self._without_nvml()
        return GpuReading(
            gpus=gpus,
            facts=tuple(card.facts for card in self._ordered()),
            driver=self._driver,
            absent={card.index: dict(card.absent) for card in self._ordered() if card.absent},
            extra={card.index: dict(card.extra) for card in self._ordered() if card.extra},
            processes=tuple(
                {**process, "gpu_index": card.index} for card in self._ordered() for process in card.processes
            )
            if self._cards
            else None,
        )

    def close(self, hangs: bool = False) -> None:
        """``hangs``: the driver does not answer, so nothing is asked of it any more."""
        if self._nvml is not None and not hangs:
            self._stop(None)
        if self._smi is not None:
            self._smi.close()
        if self._xids is not None and not hangs:
            self._xids.close()

    # What else tells of the cards.

    def _look_around(self) -> None:
        """Give each card the newest text of its counters; take the Xids that have come. Waits for nothing."""
        if self._smi is not None:
            wanted = any(card.wants_text and not card.lost for card in self._cards.values())
            texts = self._smi.texts(wanted, lambda: not any(map(self._resting, self._on_bus)))
            for card in self._cards.values():
                card.text = texts.get(card.pci or "") or (next(iter(texts.values())) if self._alone(texts) else None)
        if self._xids is not None:
            self._xids.look(
                [
                    (card.uuid, card.pci, None if card.lost or self._resting(card.pci) else card.handle)
                    for card in self._ordered()
                ]
            )
            for card in self._cards.values():
                if card.uuid in self._xids.hurry:
                    card.hurry()

    def _alone(self, texts: Mapping[str, Text]) -> bool:
        """Whether a text can only be of the one card that there is, whose place on the bus is not known."""
        return len(texts) == len(self._cards) == 1 and next(iter(self._cards.values())).pci is None

    def _told(self, card: Card, row: GpuSample) -> GpuSample:
        if self._xids is None:
            return row
        card.extra = {**card.extra, **self._xids.last(card.uuid, card.pci)}
        xid = self._xids.news(card.uuid, card.pci)
        return row if xid is None else replace(row, xid=xid)

    def _resting(self, pci: str | None) -> bool:
        return pci is not None and files.asleep(self._pci(pci))

    def _ordered(self) -> list[Card]:
        return sorted(self._cards.values(), key=lambda card: card.index)

    def _read(self, card: Card) -> GpuSample:
        if self._resting(card.pci):
            return card.without_values("asleep")
        if card.lost:
            return card.without_values("lost")
        try:
            return card.read(self._nvml, self._clock(), self._root)
        except Lost as lost:
            card.lost = True
            card.absent = {"state": str(lost)}
            log.warning("GPU %s (%s) is lost: %s", card.index, card.uuid, lost)
            self._looked_at = float("-inf")
            return card.without_values("lost")

    # Starting and stopping NVML.

    def _start(self) -> bool:
        now = self._clock()
        if now < self._not_before or not self._driver_there():
            return False
        self._not_before = now + LOOK_AGAIN_S
        if (pci := self._pci_cards()) and all(files.asleep(self._pci(card)) for card in pci):
            self._error = None
            return False  # all asleep: let them
        nvml = self._load()
        if nvml is None:
            self._error = "nvidia-ml-py is not installed"
            return False
        try:
            if any(files.asleep(self._pci(card)) for card in pci):
                nvml.nvmlInitWithFlags(_NO_ATTACH)
            else:
                nvml.nvmlInit()
            self._driver = text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError as error:
            if self._error is None:
                log.warning("NVML does not start: %s", error)
            self._error = f"NVML: {error}"
            return False
        self._nvml, self._error = nvml, None
        self._started_at, self._looked_at = now, float("-inf")
        for card in self._cards.values():
            card.driver_is(driver_tuple(self._driver or ""))
        if self._watch:
            self._start_watching(nvml)
        return True

    def _start_watching(self, nvml: Any) -> None:
        from engine.telemetry.probes import nvidia_smi  # only where there is a card: they cost a process without one
        from engine.telemetry.probes.xid import Xids

        self._xids = self._xids or Xids(self._root, self._clock)
        self._xids.nvml(nvml)
        program = nvidia_smi.find(self._root) if self._smi is None else None
        if program is not None:
            self._smi = nvidia_smi.Smi(program, self._clock)

    def _stop(self, why: str | None) -> None:
        nvml, self._nvml = self._nvml, None
        self._error = why
        self._not_before = self._clock() + LOOK_AGAIN_S
        if why:
            log.warning("NVML stopped: %s", why)
        for card in self._cards.values():
            card.handle = None
        if self._xids is not None:
            self._xids.nvml(None)
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass

    def _driver_there(self) -> bool:
        return any(
            Path(f"{self._root}/{path}").exists()
            for path in ("proc/driver/nvidia", "dev/nvidiactl", "dev/nvhost-ctrl", "dev/nvgpu", "dev/dxg")
        )

    def _without_nvml(self) -> GpuReading:
        """Cards known from before, or from the bus: asleep, or in error with the reason."""
        if not self._cards and self._driver_there():
            for position, pci in enumerate(self._pci_cards()):
                self._cards[pci] = self.card_type(position, f"pci-{pci}", pci, None, driver_tuple(""), self._cadence_s)
        gpus, absent = [], {}
        for card in self._ordered():
            resting = self._resting(card.pci)
            gpus.append(card.without_values("asleep" if resting else "error"))
            if not resting and self._error:
                absent[card.index] = {"state": self._error}
        return GpuReading(tuple(gpus), tuple(card.facts for card in self._ordered()), self._driver, absent)

    # Which cards there are.

    def _look_for_cards(self) -> None:
        now, nvml = self._clock(), self._nvml
        if now - self._looked_at < LOOK_AGAIN_S:
            return
        lost = any(card.lost for card in self._cards.values())
        if lost and now - self._started_at >= REINIT_S:
            if self._xids is not None:
                self._xids.nvml(None)
            try:
                nvml.nvmlShutdown()
                nvml.nvmlInit()
                if self._xids is not None:
                    self._xids.nvml(nvml)
            except nvml.NVMLError as error:
                raise DriverGone(f"NVML: {error}") from None
            self._started_at = now
        self._looked_at = now
        answering = set()
        for handle in self._handles():
            try:
                uuid = text(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError:
                continue  # that one alone: lost, or on its way
            card = self._cards.get(uuid)
            if card is None:
                card = self._new_card(uuid, handle)
            elif card.lost:
                log.info("GPU %s (%s) is back", card.index, uuid)
            card.handle, card.lost = handle, False
            if card.facts.name is None:
                self._learn(card)
            answering.add(uuid)
        for card in self._cards.values():
            if card.uuid not in answering and not self._resting(card.pci):
                if not card.lost:
                    log.warning("GPU %s (%s) is lost: the driver does not list it", card.index, card.uuid)
                    card.absent = {"state": "the driver does not list it"}
                card.lost = True

    def _handles(self) -> list[Any]:
        """Handles of the cards that are awake. Asking for a card by index would wake one that sleeps."""
        nvml = self._nvml
        pci = self._on_bus = self._pci_cards()
        awake = [card for card in pci if not self._resting(card)]
        get: Callable[[Any], Any]
        names: Iterable[Any]
        if len(awake) < len(pci):
            get, names = nvml.nvmlDeviceGetHandleByPciBusId, awake
        else:
            try:
                get, names = nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())
            except nvml.NVMLError as error:
                raise DriverGone(f"NVML: {error}") from None
        found = []
        for name in names:
            try:
                found.append(get(name))
            except nvml.NVMLError:
                continue  # that one alone
        return found

    def _new_card(self, uuid: str, handle: Any) -> Card:
        nvml = self._nvml
        try:
            pci = bus_id(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        except (nvml.NVMLError, AttributeError, ValueError):
            pci = None
        index: int | None = None
        if pci and pci in self._cards:  # until now known from the bus only
            index = self._cards.pop(pci).index
        if index is None:
            try:
                index = int(nvml.nvmlDeviceGetIndex(handle))
            except (nvml.NVMLError, AttributeError):
                index = 0
            taken = {card.index for card in self._cards.values()}
            while index in taken:
                index += 1
        card = self.card_type(index, uuid, pci, handle, driver_tuple(self._driver or ""), self._cadence_s)
        self._cards[uuid] = card
        return card

    def _learn(self, card: Card) -> None:
        try:
            card.learn_facts(self._nvml, self._root)
        except Lost as lost:  # asked again when it is back
            log.warning("GPU %s (%s) says nothing about itself: %s", card.index, card.uuid, lost)

    def _pci(self, card: str) -> str:
        return f"{self._root}/sys/bus/pci/devices/{card}"

    def _pci_cards(self) -> list[str]:
        base = f"{self._root}/sys/bus/pci/devices"
        return [
            name
            for name in files.children(base)
            if files.text(f"{base}/{name}/vendor") == _NVIDIA
            and (files.text(f"{base}/{name}/class") or "").startswith("0x03")
        ]
