"""What a GPU says besides its columns, as words on the page of its box."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from engine.telemetry.sample import GpuSample
from flightdeck.model.gpu_named import GpuNamed, read_gpu_named
from flightdeck.widgets.gpu_named import health_part, named_parts
from flightdeck.widgets.gpu_tabs import Gpu, figures
from flightdeck.widgets.lines import plain


def words(named: GpuNamed | None) -> list[str]:
    return [plain(part) for part in [health_part(named), *named_parts(named)] if part]


def test_all_that_a_card_can_say() -> None:
    read = read_gpu_named(
        {"0": {"health": "ok", "hotspot_c": 81.25, "module_w": 901.2, "pcie_rx_bps": 1.2e9, "pcie_tx_bps": 4e8,
               "pcie_replays": 3, "mig": [{"used_mb": 2048, "total_mb": 10240}, {"used_mb": 0, "total_mb": 20480}]}}
    )  # fmt: skip
    assert words(read[0]) == [
        "health ok", "hotspot 81 C", "module 901 W", "bus 1.2G in 400M out", "replays 3", "slices 2.0/10.0  0.0/20.0 G",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("health", "tone"), [("ok", "text"), ("pending: reset", "warn"), ("action: reboot", "bad+b"), ("?", "warn")]
)
def test_health_has_its_tone_and_its_words(health: str, tone: str) -> None:
    assert health_part(GpuNamed(health=health)) == [("health ", "dim"), (health, tone)]


def test_what_is_not_offered_takes_no_room() -> None:
    assert words(None) == words(GpuNamed(pcie_rx_bps=1.0, pcie_replays=0.0)) == []


def test_whatever_a_program_wrote_there() -> None:
    """D19, D20: names from rows are data, and numbers are numbers."""
    read = read_gpu_named(
        {"0": {"health": "\x1b[31m[b]dead", "hotspot_c": "hot", "xid_last": True, "mig": [3, {"used_mb": 1}], "pcie_rx_bps": float("nan")},
         "x": {}, 3: {"health": "ok"}, "1": "no"}
    )  # fmt: skip
    assert list(read) == [0]
    assert "\x1b" not in read[0].health and "[b]dead" in read[0].health
    assert (read[0].hotspot_c, read[0].xid_last, read[0].slices, read[0].pcie_rx_bps) == (None, None, (), None)
    assert read_gpu_named(None) == read_gpu_named([1]) == {}


def test_the_page_of_a_box_says_it_in_the_line_of_the_gpu() -> None:
    """A fault from before the window is told with its age; one of the window by its own time."""
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    gpu = Gpu(GpuSample(0, "GPU-1"), None, {}, named=GpuNamed(health="pending: reset", xid_last=13, xid_age_s=7260.0))
    said = [plain(part) for part in figures(gpu, now)]
    assert "health pending: reset" in said and "Xid 13 2h01 ago" in said
    assert "Xid none" in [plain(part) for part in figures(replace(gpu, named=None), now)]
    here = replace(gpu, now=GpuSample(0, "GPU-1", xid=79))
    assert "Xid 79" in [plain(part) for part in figures(here, now)]
