"""Deadlines around readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from engine.telemetry.probes.guard import PAUSE_S, Guard


class Clock:
    """Real time plus what a test adds to it."""

    def __init__(self) -> None:
        self.added = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.added


def look(guard: Guard[int], clock: Clock, timeout_s: float = 20.0) -> int | None:
    guard.ask()
    return guard.collect(clock() + timeout_s)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging reader hangs on; opened at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


def test_one_hung_probe_takes_the_others_with_it(gate: threading.Event) -> None:
    """A probe that hangs loses its own values; it is not asked again until it has come back, and then after a pause."""
    clock = Clock()
    calls = []

    def read() -> int:
        calls.append(1)
        if len(calls) == 2:
            gate.wait(60)
        return len(calls)

    sick, well = Guard("sick", read, clock), Guard("well", lambda: 7, clock)
    try:
        assert look(sick, clock) == 1
        sick.ask()
        well.ask()
        deadline = clock() + 0.05
        assert sick.collect(deadline) is None and sick.error == "sick: no answer in time"
        assert well.collect(clock() + 20) == 7
        for _ in range(3):
            began = time.monotonic()
            assert look(sick, clock) is None
            assert time.monotonic() - began < 1.0, "a probe known to hang was waited for"
        assert len(calls) == 2
        gate.set()
        assert sick._done.wait(20)
        assert look(sick, clock) is None, "asked again without a pause"
        clock.added += PAUSE_S + 1
        assert look(sick, clock) == 3 and sick.error is None
    finally:
        gate.set()
        sick.close()
        well.close()


def test_a_probe_that_fails_says_why_and_is_given_pauses() -> None:
    clock = Clock()
    calls = []

    def read() -> int:
        calls.append(1)
        raise OSError("sensor is on fire")

    guard = Guard("sick", read, clock)
    for _ in range(3):
        assert look(guard, clock) is None
    assert guard.error == "sick: OSError: sensor is on fire"
    assert look(guard, clock) is None and len(calls) == 3
    clock.added += 3600
    look(guard, clock)
    assert len(calls) == 4
    guard.close()


def test_threads_end_with_their_guard() -> None:
    guard = Guard("x", lambda: 1)
    assert look(guard, Clock()) == 1
    guard.close(timeout_s=20)
    assert not any(thread.name == "probe x" for thread in threading.enumerate())
