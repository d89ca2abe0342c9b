"""Network traffic in bytes per second, summed over the interfaces that lead out of the box."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from engine.telemetry.probes import files

COLUMNS = ("net_rx_bps", "net_tx_bps")

# What carries another interface's bytes once more, or never leaves the box.
_INNER = re.compile(
    r"lo|(veth|docker|br-|virbr|vnet|tap|tun|wg|cni|flannel|cali|cilium|lxc|lxd|kube|podman|ifb|dummy|bond|team|zt|"
    r"tailscale|sit|gre|ip6tnl|erspan|nlmon|vxlan|macvtap|macvlan).*|.*\.\d+"
)


class NetProbe:
    """Rates between two calls; an interface that appeared or was reset in between is left out once."""

    def __init__(self, root: Path) -> None:
        self._dev = f"{root}/proc/net/dev"
        self._class = f"{root}/sys/class/net"
        self._before: dict[str, tuple[int, int]] = {}
        self._before_at = 0.0

    def read(self) -> dict[str, Any]:
        now, counts = time.monotonic(), self._counts()
        passed, before = now - self._before_at, self._before
        self._before, self._before_at = counts, now
        rates = {
            name: (round((rx - before[name][0]) / passed, 1), round((tx - before[name][1]) / passed, 1))
            for name, (rx, tx) in counts.items()
            if name in before and passed > 0 and rx >= before[name][0] and tx >= before[name][1]
        }
        return {
            "net_rx_bps": sum(rx for rx, _ in rates.values()) if rates else None,
            "net_tx_bps": sum(tx for _, tx in rates.values()) if rates else None,
            "absent": {} if counts else dict.fromkeys(COLUMNS, "no network interface"),
            "sensors": {"net": rates},
        }

    def _counts(self) -> dict[str, tuple[int, int]]:
        every: dict[str, tuple[int, int]] = {}
        for line in (files.everything(self._dev) or "").splitlines():
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and len(fields) >= 9:
                every[name.strip()] = (int(fields[0]), int(fields[8]))
        outer = {name: counts for name, counts in every.items() if not _INNER.fullmatch(name)}
        real = {name: counts for name, counts in outer.items() if Path(f"{self._class}/{name}/device").exists()}
        return real or outer  # in a container the way out is virtual too
