"""Health, hotspot, bus and slices of a GPU as spans that stay together. Pure."""

from __future__ import annotations

from flightdeck.model import units
from flightdeck.model.gpu_named import GpuNamed
from flightdeck.widgets.lines import Span

_TONES = {"ok": "text", "pending": "warn", "action": "bad+b"}
_SHOWN = 7  # slices


def health_part(named: GpuNamed | None) -> list[Span]:
    """One phrase; empty for a card that tells nothing of the kind."""
    if named is None or not named.health:
        return []
    return [("health ", "dim"), (named.health, _TONES.get(named.health.partition(":")[0], "warn"))]


def named_parts(named: GpuNamed | None) -> list[list[Span]]:
    """The rest, most telling first; what the card does not offer takes no room here."""
    if named is None:
        return []
    found: list[list[Span]] = []
    if named.hotspot_c is not None:
        found.append([("hotspot ", "dim"), (f"{units.number(named.hotspot_c)} C", "text")])
    if named.module_w is not None:
        found.append([("module ", "dim"), (f"{units.watts(named.module_w)} W", "text")])
    if named.pcie_rx_bps is not None and named.pcie_tx_bps is not None:
        spans: list[Span] = [("bus ", "dim"), (units.rate(named.pcie_rx_bps), "text"), (" in ", "dim")]
        found.append([*spans, (units.rate(named.pcie_tx_bps), "text"), (" out", "dim")])
    if named.pcie_replays:
        found.append([("replays ", "dim"), (units.number(named.pcie_replays), "warn")])
    if named.slices:
        sizes = [f"{units.gigabytes(used)}/{units.gigabytes(total)}" for used, total in named.slices[:_SHOWN]]
        more = f" +{len(named.slices) - _SHOWN}" if len(named.slices) > _SHOWN else ""
        found.append([("slices ", "dim"), (f"{'  '.join(sizes)}{more}", "text"), (" G", "dim")])
    return found
