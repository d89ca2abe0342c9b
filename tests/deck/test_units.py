"""Figures in fixed cells; what is not known is n/a."""

from __future__ import annotations

import math

import pytest

from flightdeck.model import units

BAD = (None, math.nan, math.inf, -math.inf, 10**400)  # JSON knows no largest integer


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("show", [units.number, units.percent, units.watts, units.gigahertz, units.rate, units.gigabytes, units.count])  # fmt: skip
def test_formatting_none_crashes_nothing(show: object, value: float | None) -> None:
    """D5, D6: absent is n/a, never 0 and never an exception."""
    assert show(value) == "n/a"  # type: ignore[operator]


@pytest.mark.parametrize("value", BAD)
def test_ages_of_nothing(value: float | None) -> None:
    assert units.age(value) == "-"
    assert units.ago(value) == "never"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00"),
        (362, "6m02"),
        (3599, "59m59"),
        (3600, "1h00"),
        (172_800, "2d"),
        (-5, "0s"),
    ],
)
def test_age(seconds: float, text: str) -> None:
    assert units.age(seconds) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0k"), (90_000, "90k"), (120_000, "0.1M"), (1.2e6, "1.2M"), (9.96e6, "10M"), (4e7, "40M"), (2.5e9, "2.5G")],
)
def test_rate_fits_five_cells(value: float, text: str) -> None:
    assert units.rate(value) == text
    assert len(text) <= 5


def test_less_than_a_tenth_of_a_second_is_none() -> None:
    """D9: noise of the counters is no alarm."""
    assert units.seconds(99.9) == "0 s"
    assert units.seconds(1500) == "1.5 s"
    assert units.seconds(415_000) == "415 s"


def test_counts_stay_short() -> None:
    assert [units.count(n) for n in (0, 9999, 52_000, 1_200_000)] == ["0", "9999", "52k", "1.2M"]
