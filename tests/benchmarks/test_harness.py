"""The arithmetic of the benchmarks: medians, ratios, rates, alternation. Nothing here is timed."""

from __future__ import annotations

import math

import pytest

from benchmarks.harness import BenchError, Report, alternate, finish_rate, median, paired_ratio, percentile


def test_median_and_percentile_skip_what_was_not_measured():
    assert median([3.0, math.nan, 1.0, 2.0]) == 2.0
    assert math.isnan(median([math.nan]))
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0
    assert percentile([5.0], 50) == 5.0
    assert math.isnan(percentile([], 50))


def test_ratio_is_taken_within_each_round():
    # The machine was ten times slower in the second round, for both sides.
    assert paired_ratio([100.0, 10.0, 100.0], [50.0, 5.0, 50.0]) == 2.0
    assert paired_ratio([100.0, math.nan], [50.0, 1.0]) == 2.0


def test_rows_of_one_commit_do_not_count_as_taking_no_time():
    # Ten batches of ten, one batch a second: ten rows a second, whatever the batches' instants share.
    times = [float(second) for second in range(10) for _ in range(10)]
    assert finish_rate(times, warm_up=0.0) == pytest.approx(10.0)
    with pytest.raises(BenchError, match="same instant"):
        finish_rate([1.0, 1.0, 1.0])


def test_sides_alternate_and_rotate_and_one_failure_costs_one_value():
    order: list[str] = []

    def side(name: str):
        def run() -> float:
            order.append(name)
            if name == "b" and len(order) < 3:
                raise BenchError("not up")
            return 1.0

        return run

    values = alternate({name: side(name) for name in "abc"}, rounds=2)
    assert "".join(order) == "abcbca"
    assert math.isnan(values["b"][0]) and values["b"][1] == 1.0
    assert values["a"] == values["c"] == [1.0, 1.0]


def test_report_says_what_missed_its_bound():
    report = Report()
    ours, theirs = report.line("drain", "ours", "jobs/s", [300.0]), report.line("drain", "peer", "jobs/s", [100.0])
    report.ratio(ours, theirs, at_least=2.5)
    report.ratio(ours, theirs)
    report.check("wake", "p50", 3.0, at_most=2.0)
    report.check("wake", "p99", math.nan, at_most=3.0)
    assert [check.name for check in report.failed] == ["p50", "p99"]
    table = report.table()
    assert "ours / peer" in table and ">= 2.50" in table and "MISSED" in table
    assert report.as_json()["checks"][3]["value"] is None
