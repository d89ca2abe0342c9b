"""Numbers as fixed cells. None, NaN and infinities are ``n/a``, never 0, and never an exception."""

from __future__ import annotations

NA = "n/a"


_MOST = 1.7e308  # JSON's integers may be beyond what a float can hold


def known(value: float | None) -> bool:
    """Whether there is a real number to show."""
    return value is not None and isinstance(value, (int, float)) and -_MOST < value < _MOST


def number(value: float | None, digits: int = 0) -> str:
    """``digits`` decimals, or ``n/a``."""
    if not known(value):
        return NA
    assert value is not None
    return f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return NA if not known(value) else f"{number(value)}%"


def watts(value: float | None) -> str:
    """Whole watts: tenths only jitter."""
    return number(value)


def gigahertz(mhz: float | None) -> str:
    """MHz in, GHz out, two decimals."""
    return NA if not known(mhz) else number((mhz or 0.0) / 1000.0, 2)


def rate(bps: float | None) -> str:
    """Bytes per second in at most five cells: ``0.1M``, ``11M``, ``1.2G``."""
    if not known(bps):
        return NA
    value = max(0.0, bps or 0.0)
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if value >= size:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    if value >= 1e5:
        return f"{value / 1e6:.1f}M"
    return f"{value / 1e3:.0f}k"


def gigabytes(mb: float | None) -> str:
    """MiB in, GiB out: one decimal below 100, none above."""
    if not known(mb):
        return NA
    value = (mb or 0.0) / 1024.0
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def age(seconds: float | None) -> str:
    """At most six cells: ``7s``, ``6m02``, ``3h05``, ``12d``."""
    if not known(seconds):
        return "-"
    total = max(0, int(seconds or 0.0))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}"
    if total < 86400 * 2:
        return f"{total // 3600}h{total % 3600 // 60:02d}"
    return f"{total // 86400}d"


def ago(seconds: float | None) -> str:
    """``3 s ago``; ``never`` when nothing ever came."""
    if not known(seconds):
        return "never"
    total = max(0, int(seconds or 0.0))
    if total < 100:
        return f"{total} s ago"
    return f"{age(total)} ago"


def count(value: int | float | None) -> str:
    """A whole number that stays short: ``5140``, ``52k``, ``1.2M``."""
    if not known(value):
        return NA
    whole = int(value or 0)
    if whole < 10_000:
        return str(whole)
    if whole < 1_000_000:
        return f"{whole // 1000}k"
    return f"{whole / 1e6:.1f}M"


def seconds(ms: float | None) -> str:
    """Milliseconds in, ``415 s`` out; under a tenth of a second counts as none."""
    if not known(ms) or (ms or 0.0) < 100.0:
        return "0 s"
    value = (ms or 0.0) / 1000.0
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
