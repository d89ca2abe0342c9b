"""Benchmarks: both sides in one run, alternating, medians and ratios. `python -m benchmarks`; see docs/benchmarks.md."""
