"""Which GPUs a lane finds, which it uses, what fits on them, and what its executors see."""

from __future__ import annotations

import time
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from engine.errors import BadInput
from engine.lane import devices, start
from engine.lane.devices import UNKNOWN, Device, choose, look, look_here, models_that_fit
from engine.lane.options import LaneOptions
from engine.lane.slot import Spec
from tests.fakes.gpus import HERE, Gpus, card
from tests.fakes.gpus import UNKNOWN as UNANSWERED
from tests.telemetry import nvml, trees

TWO = (
    Device(0, "GPU-aaaa-1", "nvidia", "RTX 4090", 24_000.0),
    Device(1, "GPU-bbbb-1", "nvidia", "RTX 3090", 24_000.0),
)
DISCRETE = Device(0, "amd-1", "amd", "RX 7900", 24_000.0)
OWN_GRAPHICS = Device(1, "pci-0000:c5:00.0", "amd", "Radeon 8060S", 96_000.0, unified=True)


# --- which a lane uses ---


def test_without_devices_named_a_lane_uses_every_gpu_that_it_sees() -> None:
    assert choose(TWO, (), {}) == TWO
    assert choose(TWO, (), {"CUDA_VISIBLE_DEVICES": "1"}) == TWO[1:]
    assert choose(TWO, (), {"CUDA_VISIBLE_DEVICES": "GPU-bbbb,GPU-aaaa"}) == (TWO[1], TWO[0])
    assert choose(TWO, (), {"CUDA_VISIBLE_DEVICES": "1,7,0"}) == TWO[1:], "up to the first that is not there, as CUDA"
    assert choose(TWO, (), {"CUDA_VISIBLE_DEVICES": ""}) == (UNKNOWN,), "it sees none: it works as without tools"
    assert choose((), (), {}) == (UNKNOWN,)


def test_of_two_vendors_the_processors_own_graphics_come_last() -> None:
    assert choose((*TWO, DISCRETE, OWN_GRAPHICS), (), {}) == TWO
    assert choose((DISCRETE, OWN_GRAPHICS), (), {}) == (DISCRETE,)
    assert choose((OWN_GRAPHICS,), (), {}) == (OWN_GRAPHICS,)
    assert choose((DISCRETE, OWN_GRAPHICS), (), {"ROCR_VISIBLE_DEVICES": "1"}) == (UNKNOWN,)
    assert choose((*TWO, DISCRETE), ("amd-1",), {}) == (DISCRETE,), "named is named"


def test_devices_are_named_by_number_or_by_the_beginning_of_their_uuid() -> None:
    assert choose(TWO, ("1",), {"CUDA_VISIBLE_DEVICES": "0"}) == TWO[1:]
    assert choose(TWO, ("GPU-bbbb", "0"), {}) == (TWO[1], TWO[0])
    with pytest.raises(BadInput, match=r"no GPU 2 \(there are: 0 = GPU-aaaa-1 \(RTX 4090\), 1 = "):
        choose(TWO, ("2",), {})
    with pytest.raises(BadInput, match="beginning of 2 uuids"):
        choose(TWO, ("GPU-",), {})
    with pytest.raises(BadInput, match="twice"):
        choose(TWO, ("0", "GPU-aaaa-1"), {})
    assert choose((), ("3", "GPU-cafe"), {}) == (Device(3), Device(uuid="GPU-cafe")), "taken at its word"


def test_an_executor_sees_its_device_only() -> None:
    assert TWO[1].environment() == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert Device(3).environment()["CUDA_VISIBLE_DEVICES"] == "3"
    assert OWN_GRAPHICS.environment() == {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}
    assert UNKNOWN.environment() == {} and UNKNOWN.key is None


# --- what fits ---


def test_what_fits_is_decided_by_the_devices_memory_less_a_reserve() -> None:
    card24 = Device(0, "GPU-1", "nvidia", vram_mb=24_576.0)
    room = card24.room_mb(512.0)
    assert models_that_fit({"small": 8.0, "brim": 23.5, "big": 23.6}, [room]) == ("brim", "small")
    spark = Device(0, "GPU-2", "nvidia", vram_mb=124_000.0, unified=True)
    assert spark.room_mb(512.0) == 124_000.0 - 8 * 512.0, "the system lives there too"
    assert UNKNOWN.room_mb(512.0) is None
    assert models_that_fit({"huge": 1e6}, [UNKNOWN.room_mb(512.0)]) == ("huge",), "unknown memory fits"


# --- the look ---


def test_every_card_that_answers_is_found_and_a_lost_one_is_not(tmp_path: Path) -> None:
    cards = nvml.ordinary("GPU-1"), nvml.ordinary("GPU-2", lost=True), nvml.ordinary("GPU-3")
    found = look_here(tmp_path, lambda: nvml.FakeNvml(*cards))
    assert [(device.index, device.uuid, device.vram_mb) for device in found.devices] == [
        (0, "GPU-1", 24_576.0),
        (2, "GPU-3", 24_576.0),
    ]
    assert found.error is None and not found.devices[0].unified


def test_a_card_without_memory_of_its_own_has_the_machines(tmp_path: Path) -> None:
    trees.host(tmp_path)
    found = look_here(tmp_path, lambda: nvml.FakeNvml(nvml.gb10()))
    assert [(device.unified, device.vram_mb) for device in found.devices] == [(True, 32_768.0)]


def test_a_card_in_slices_is_its_slices(tmp_path: Path) -> None:
    whole, slice_1, slice_2 = nvml.ordinary("GPU-1"), nvml.ordinary("MIG-1"), nvml.ordinary("MIG-2")
    slice_2.answers["nvmlDeviceGetMemoryInfo"] = types.SimpleNamespace(used=0, total=4864 * nvml.MIB)
    fake: Any = nvml.FakeNvml(whole)
    places = {0: slice_1, 3: slice_2}

    def place(card: object, number: int) -> object:
        if number not in places:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return places[number]

    fake.nvmlDeviceGetMigMode = lambda card: [1, 1]
    fake.nvmlDeviceGetMaxMigDeviceCount = lambda card: 7
    fake.nvmlDeviceGetMigDeviceHandleByIndex = place
    found = look_here(tmp_path, lambda: fake).devices
    assert [(device.uuid, device.vram_mb) for device in found] == [("MIG-1", 24_576.0), ("MIG-2", 4864.0)]
    fake.nvmlDeviceGetMigMode = lambda card: [0, 0]
    assert [device.uuid for device in look_here(tmp_path, lambda: fake).devices] == ["GPU-1"]


def test_amd_cards_are_found_without_any_library(tmp_path: Path) -> None:
    trees.amd_card(tmp_path)
    found = look_here(tmp_path, lambda: None)
    assert [(device.vendor, device.index, device.vram_mb) for device in found.devices] == [("amd", 0, 24_560.0)]


def test_no_driver_is_no_error_and_a_broken_one_is(tmp_path: Path) -> None:
    fake = nvml.FakeNvml()
    fake.start_error = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert look_here(tmp_path, lambda: fake) == devices.Found()
    fake.start_error = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert "NVML" in (look_here(tmp_path, lambda: fake).error or "")


def test_a_driver_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Gpus(tmp_path, card(0), card(1, name=UNANSWERED))
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(HERE))
    assert [device.index for device in look(30.0).devices] == [0, 1]
    made.driver(hang=True)
    began = time.monotonic()
    found = look(0.3)
    assert found.devices == () and "no answer within 0.3 s" in (found.error or "")
    assert time.monotonic() - began < 30


# --- slots ---


def equipped(monkeypatch: pytest.MonkeyPatch, found: tuple[Device, ...], **options: Any) -> LaneOptions:
    monkeypatch.setattr(devices, "look", lambda: devices.Found(found))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = LaneOptions(**{"queue": "gpu", "slots": 0, **options})
    start.check(made)
    return start.equip(made)


def slots_of(options: LaneOptions, tmp_path: Path) -> list[tuple[str, str | None]]:
    spec = Spec("b1", "b1/gpu/0", "0", tmp_path, tmp_path, {})
    return [(slot.kind, slot.device.key) for slot in options.make_slots(spec)]


def test_a_slot_for_each_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a, b = TWO[0].key, TWO[1].key
    assert slots_of(equipped(monkeypatch, TWO), tmp_path) == [("any", a), ("any", b)]
    assert slots_of(equipped(monkeypatch, TWO, slots=1), tmp_path) == [("any", a)]
    assert slots_of(equipped(monkeypatch, TWO, devices=("1",)), tmp_path) == [("any", b)]
    kinds = equipped(monkeypatch, TWO, model_slots=1, free_slots=1)
    assert slots_of(kinds, tmp_path) == [("model", a), ("free", b)]
    shared = equipped(monkeypatch, TWO, slots=3, share_gpu=True)
    assert slots_of(shared, tmp_path) == [("any", a), ("any", b), ("any", a)]
    assert slots_of(equipped(monkeypatch, (), slots=3), tmp_path) == [("any", None)] * 3, "nothing is known: as given"
    assert equipped(monkeypatch, ()).slots == 1


@pytest.mark.parametrize(
    "wrong",
    [{"slots": 3}, {"model_slots": 2, "free_slots": 1}, {"slots": 2, "devices": ("0",)}, {"exit_on_trip": True}],
)
def test_more_slots_than_devices_are_refused_with_the_devices_named(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match="share-gpu" if "exit_on_trip" not in wrong else "one slot"):
        equipped(monkeypatch, TWO, **wrong)
