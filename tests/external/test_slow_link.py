"""A link of 4 kB/s that stands still for 10 s, with its real numbers (D23). The suite has the short versions."""

from __future__ import annotations

import threading
import time

import pytest

from engine.store import Store
from tests.deck.terminal import Terminal
from tests.deck.test_terminal import Open, add_lane, opened, terminal
from tests.support import eventually

__all__ = ["terminal"]

RATE = 4096
STALL_S = 10.0


class Readings:
    """Three boxes whose recorders write every two seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Readings:
        with self.store.connect("recorder") as db:
            for box in ("attic", "barn", "cellar"):
                db.run("insert into boxes (box, cores) values ({box}, 8)", box=box)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join(10)

    def _write(self) -> None:
        step = 0
        with self.store.connect("recorder") as db:
            while not self.ended.wait(0.7):
                step += 1
                db.run(
                    "insert into flight_recorder (box, at, cpu_pct, cpu_temp_c, cpu_mhz, mem_used_mb, mem_total_mb, load1) "
                    "values ({box}, {clock}, {pct}, {heat}, 3000, 5000, 16000, 1.5)",
                    box=("attic", "barn", "cellar")[step % 3], pct=step * 7 % 100, heat=50 + step % 40,
                )  # fmt: skip


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "silent"])
def test_keys_are_answered_within_a_second_of_the_link_s_return(
    terminal: Open, sqlite_store: Store, answers: bool
) -> None:
    """D23: a terminal that answers is asked behind each frame when the link is slow; of one that is silent the kernel tells
    what has been read. Little that is old is under way in either case."""
    add_lane(sqlite_store)
    with Readings(sqlite_store):
        deck: Terminal = opened(terminal, sqlite_store.url, answers=answers)
        time.sleep(6.0)
        deck.rate = RATE
        time.sleep(4.0)
        deck.reading = False
        time.sleep(STALL_S)
        sent = len(deck.sent)
        returned = time.time()
        deck.reading = True
        deck.keys("f")
        eventually(lambda: "FROZEN" in deck.screen(), 30.0)
        took = time.time() - returned
        played = len(deck.sent) - sent
        print(f"\nanswers={answers}: the key is answered after {took:.2f} s and {played} bytes")
        assert took < 1.0
        deck.rate = None
        deck.keys("q")
        assert deck.wait_gone() == 0
