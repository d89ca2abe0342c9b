"""A database that goes away under a recorder and a deck and comes back: what the deck knows before, meanwhile and after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from engine.feed import Feed, FeedUpdate
from engine.store import Store
from engine.telemetry.recorder import run_recorder
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from flightdeck.model.deck import Clock, Deck
from flightdeck.model.metrics import METRICS
from flightdeck.model.slots import slot_of
from tests.support import eventually

BOX = "lab"
TRACES = ("cpu_pct", "gpu_c")


class Steady:
    """A source that answers every time, and remembers when it was asked."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def facts(self) -> BoxFacts:
        return BoxFacts(BOX, "m-1", cores=4, simulated=True)

    def sample(self, dt_s: float) -> BoxSample:
        self.looks.append(time.monotonic())
        gpu = GpuSample(0, "GPU-1", temp_c=60.0, brakes=0)
        return BoxSample(BOX, datetime.now(UTC), cpu_pct=50.0, gpus=(gpu,))

    def close(self) -> None:
        pass


@dataclass
class Story:
    """What was seen."""

    lost_error: str = ""
    lost_after_s: float = 0.0  # from the stop to the banner
    live_after_s: float = 0.0  # from the start to the deck's being live
    whole_after_s: float = 0.0  # from the start to traces without a hole
    state_meanwhile: str = ""
    age_meanwhile_s: float = 0.0
    tries: list[float] = field(default_factory=list)  # pauses until the next try that the banner told
    slots: int = 0  # of 5 s, from the first sample to the last before the end
    holes: list[str] = field(default_factory=list)  # of each trace, the slots without a reading; empty is good
    log: list[str] = field(default_factory=list)
    failure: BaseException | None = None


def run(store: Store, stop: Callable[[], None], start: Callable[[], None], down_s: float, cadence_s: float) -> Story:
    """Record and watch; ``stop`` the database, ``start`` it after ``down_s`` seconds; until the traces are whole again."""
    story, source, ending = Story(), Steady(), threading.Event()
    deck = Deck(Clock(time.monotonic, lambda: datetime.now(UTC)))
    lock = threading.Lock()

    def take(update: FeedUpdate) -> None:
        with lock:
            deck.apply(update)
            if update.next_try_s is not None:
                story.tries.append(update.next_try_s)

    def record() -> None:
        try:
            run_recorder(store, source, BOX, ending, cadence_s=cadence_s)
        except BaseException as failure:
            story.failure = failure

    thread = threading.Thread(target=record)
    feed = Feed(lambda: store, take)
    thread.start()
    feed.start()
    try:
        eventually(lambda: _newest(deck, lock), 60, "samples on the deck")
        with lock:
            first = slot_of(deck.histories[BOX].latest.at)  # type: ignore[union-attr]
        before = len(source.looks)
        eventually(lambda: len(source.looks) >= before + 3, 60, "more samples")
        stopped = time.monotonic()
        stop()
        eventually(lambda: deck.link.state == "lost", 60, "the banner")
        story.lost_after_s = time.monotonic() - stopped
        story.lost_error = deck.link.error
        eventually(lambda: time.monotonic() - stopped >= down_s, down_s + 60, "the end of the outage")
        with lock:
            box = next(box for box in deck.boxes() if box.raw == BOX)
            story.state_meanwhile, story.age_meanwhile_s = deck.box_state(box), deck.live_age() or 0.0
        start()
        started = time.monotonic()
        eventually(lambda: deck.link.state == "live", 90, "live again")
        story.live_after_s = time.monotonic() - started
        last = slot_of(datetime.now(UTC))
        eventually(lambda: _reaches(deck, lock, last), 90, "samples of after the outage")

        def whole() -> bool:
            with lock:
                story.holes = holes(deck, first, last)
            return not story.holes

        try:
            eventually(whole, 60, "traces without a hole")
        except AssertionError:
            pass  # told by ``holes``
        story.whole_after_s = time.monotonic() - started
        story.slots = last - first + 1
    finally:
        ending.set()
        feed.stop(5.0)
        thread.join(60)
    return story


def holes(deck: Deck, first: int, last: int) -> list[str]:
    """Per trace the slots from ``first`` to ``last`` that have no reading."""
    rings = deck.histories[BOX].rings
    found = []
    for metric in METRICS:
        if metric.key in TRACES:
            columns = rings[metric.key].columns(last, 1, last - first + 1)
            empty = [first + n for n, pair in enumerate(columns) if pair is None]
            if empty:
                found.append(
                    f"{metric.key}: {[datetime.fromtimestamp(slot * 5, UTC).strftime('%H:%M:%S') for slot in empty]}"
                )
    return found


def _newest(deck: Deck, lock: threading.Lock) -> bool:
    with lock:
        history = deck.histories.get(BOX)
        return history is not None and history.latest is not None


def _reaches(deck: Deck, lock: threading.Lock, slot: int) -> bool:
    with lock:
        latest = deck.histories[BOX].latest
        return latest is not None and slot_of(latest.at) >= slot
