"""The feed against real databases: what it brings, how soon, and what happens when the database goes away."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg
import pytest

import engine
from engine import feed as feed_module
from engine.errors import StoreUnavailable
from engine.feed import Feed, FeedUpdate
from engine.store import Db, Store
from engine.store.embedded import EmbeddedServer
from engine.store.migrate import migrate
from engine.telemetry import writer
from engine.telemetry.sample import BoxFacts, BoxSample, GpuSample
from tests.support import RefusingServer, eventually


class Watcher:
    """Collects updates; looks at them from the test's thread."""

    def __init__(self) -> None:
        self.updates: list[FeedUpdate] = []
        self.feeds: list[Feed] = []

    def watch(self, opener: Callable[[], Store], **kwargs: bool | str | float) -> Feed:
        feed = Feed(opener, self.updates.append, **kwargs)  # type: ignore[arg-type]
        self.feeds.append(feed)
        feed.start()
        return feed

    def state(self) -> str:
        return self.updates[-1].state if self.updates else ""

    def live(self) -> FeedUpdate:
        return eventually(lambda: next((u for u in self.updates if u.state == "live" and u.view), None), what="live")

    def samples(self, box: str) -> list[BoxSample]:
        return [s for u in list(self.updates) for s in u.samples if s.box == box]

    def views(self) -> int:
        return sum(u.view is not None for u in list(self.updates))


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    found = Watcher()
    yield found
    for feed in found.feeds:
        feed.stop(5.0)


def record(db: Db, box: str, age_s: float = 0.0, tell: bool = True, **values: float) -> BoxSample:
    """What a recorder does for one sample."""
    at = db.now() - timedelta(seconds=age_s)
    sample = BoxSample(box, at, gpus=(GpuSample(0, temp_c=60.0),), **values)  # type: ignore[arg-type]
    writer.write_facts(db, BoxFacts(box, cores=8))
    payload = sample.payload() if tell else None
    writer.write(db, writer.Recorder(box, "0" * 16, 1, "0"), [sample], payload=payload, last_error=None)
    return sample


def test_the_first_update_brings_everything(store: Store, db: Db, watcher: Watcher) -> None:
    record(db, "kestrel", cpu_pct=40.0)
    watcher.watch(lambda: store)
    first = watcher.live()
    assert watcher.updates[0].state == "connecting"
    assert first.view is not None and [b["box"] for b in first.view["boxes"]] == ["kestrel"]
    assert first.view["boxes"][0]["state"] == "ok" and first.view["boxes"][0]["facts"]["cores"] == 8
    assert first.history is not None and first.history["kestrel"][-1].cpu_pct == 40.0
    assert first.at is not None and first.at.tzinfo is not None


def test_an_unchanged_view_is_not_sent_again(store: Store, db: Db, watcher: Watcher) -> None:
    watcher.watch(lambda: store)
    watcher.live()
    before = len(watcher.updates)
    eventually(lambda: len(watcher.updates) > before + 4)
    assert watcher.views() == 1, "nothing changed, so nothing but signs of life was sent"


def test_what_is_enqueued_shows_within_a_second_or_so(store: Store, db: Db, watcher: Watcher) -> None:
    engine.register_ingest_task("t", lambda: None)
    watcher.watch(lambda: store)
    watcher.live()
    engine.enqueue_ingest_job(task_name="t", queue="default", project="p", conn=db.raw)
    if db.kind == "sqlite":
        db.raw.commit()
    began = time.monotonic()
    eventually(
        lambda: next(
            (u for u in watcher.updates if u.view and u.view["projects"] == [_counted("p", 1)]),
            None,
        ),
        10,
    )
    assert time.monotonic() - began < 5


def _counted(project: str, queued: int) -> dict[str, object]:
    return {"project": project, "queued": queued, "running": 0, "awaiting": 0, "capped": False}


def test_a_sample_of_the_recorder_arrives(store: Store, db: Db, watcher: Watcher) -> None:
    watcher.watch(lambda: store)
    watcher.live()
    record(db, "osprey", cpu_pct=77.0)
    eventually(lambda: [s.cpu_pct for s in watcher.samples("osprey")] == [77.0], 10)
    view = eventually(lambda: next((u.view for u in watcher.updates if u.view and u.view["boxes"]), None), 10)
    assert view is not None and view["boxes"][0]["box"] == "osprey"
    known = eventually(lambda: [u for u in watcher.updates if u.view and any(b["facts"] for b in u.view["boxes"])], 10)
    assert known[0].view["boxes"][0]["facts"]["cores"] == 8


def test_hw_metrics_of_any_program_appears_as_that_box_within_a_second(
    pg_store: Store, pg_url: str, watcher: Watcher
) -> None:
    feed = watcher.watch(lambda: pg_store)
    eventually(lambda: watcher.live() and watcher.updates[-1].listening)
    with psycopg.connect(pg_url, autocommit=True) as raw:
        for text in ("garbage", '{"no": "box"}', '{"box": "bad\\u0007name"}', "[" * 7000):
            raw.execute("select pg_notify('hw_metrics', %s)", (text,))
        raw.execute(
            "select pg_notify('hw_metrics', %s)",
            ('{"box": "stranger", "cpu_pct": 12.5, "gpus": [{"gpu_index": 0, "temp_c": 71}], "new_key": [1]}',),
        )
        began = time.monotonic()
        eventually(lambda: watcher.samples("stranger"), 10)
        took = time.monotonic() - began
    (sample,) = watcher.samples("stranger")
    assert sample.cpu_pct == 12.5 and sample.gpus[0].temp_c == 71
    assert took < 5, "one second on an idle machine; this one is shared"
    assert feed.dropped == 4
    assert all(u.state != "lost" for u in watcher.updates)


def test_a_payload_too_long_for_its_gpus_is_read_from_the_table(pg_store: Store, watcher: Watcher) -> None:
    watcher.watch(lambda: pg_store)
    watcher.live()
    with pg_store.connect("test") as db:
        at = db.now()
        sample = BoxSample("wide", at, gpus=tuple(GpuSample(i, temp_c=50.0, util_pct=99.0) for i in range(200)))
        assert "truncated" in sample.payload()
        recorder = writer.Recorder("wide", "0" * 16, 1, "0")
        writer.write(db, recorder, [sample], payload=sample.payload(), last_error=None)
    eventually(lambda: [len(s.gpus) for s in watcher.samples("wide")] == [200], 10)


def test_listen_dies_silently_and_the_gap_is_filled_from_the_table(pg_store: Store, watcher: Watcher) -> None:
    """D15: the listening session goes; what was written meanwhile still arrives, and LISTEN comes back."""
    watcher.watch(lambda: pg_store)
    watcher.live()
    with pg_store.connect("test") as db:
        record(db, "kestrel", cpu_pct=1.0)
        eventually(lambda: len(watcher.samples("kestrel")) == 1, 10)
        with db.transaction():
            db.run("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'flightdeck wakes'")
            record(db, "kestrel", cpu_pct=2.0, tell=False)
        eventually(lambda: [s.cpu_pct for s in watcher.samples("kestrel")] == [1.0, 2.0], 20)
        eventually(lambda: watcher.updates[-1].listening, 20)
        record(db, "kestrel", cpu_pct=3.0)
        eventually(lambda: [s.cpu_pct for s in watcher.samples("kestrel")] == [1.0, 2.0, 3.0], 10)
    assert all(u.state != "lost" for u in watcher.updates)


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server that this test may stop and freeze."""
    directory = Path(tempfile.mkdtemp(prefix="flightdeck-feed-"))
    server = EmbeddedServer(directory, {"fsync": "off"})
    server.acquire()
    server.ensure_database("feed_test")
    yield server
    _signal_all(server, signal.SIGCONT)
    server.release()
    shutil.rmtree(directory, ignore_errors=True)


def _signal_all(server: EmbeddedServer, number: int) -> None:
    try:
        postmaster = psutil.Process(int((server.directory / "pgdata/postmaster.pid").read_text().split()[0]))
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    for process in [postmaster, *postmaster.children(recursive=True)]:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass


def test_the_server_restarts_under_the_feed(own_server: EmbeddedServer, watcher: Watcher) -> None:
    """D13: lost with the reason, its age and the next try; tried again without end; live again with what was missed."""
    store = Store(own_server.url("feed_test"))
    migrate(store)
    with store.connect("test") as db:
        record(db, "kestrel", cpu_pct=1.0)
    watcher.watch(lambda: store)
    watcher.live()
    own_server.release()
    lost = eventually(lambda: next((u for u in watcher.updates if u.state == "lost"), None), 30)
    assert lost.error and "\n" not in lost.error and lost.next_try_s and lost.next_try_s <= 30
    again = eventually(lambda: [u for u in watcher.updates if u.state == "lost"][2:], 30)
    assert again[-1].lost_since_mono == lost.lost_since_mono
    own_server.acquire()
    with store.connect("test") as db:
        record(db, "kestrel", cpu_pct=2.0)
    eventually(lambda: watcher.state() == "live", 45)
    seen = eventually(
        lambda: [s.cpu_pct for u in watcher.updates for s in (*u.samples, *(u.history or {}).get("kestrel", ()))], 20
    )
    eventually(lambda: 2.0 in seen or any(s.cpu_pct == 2.0 for s in watcher.samples("kestrel")), 20)
    with store.connect("test") as db:
        record(db, "kestrel", cpu_pct=3.0)
        eventually(lambda: any(s.cpu_pct == 3.0 for s in watcher.samples("kestrel")), 20)


def test_a_frozen_server_is_noticed_and_stop_does_not_wait_for_it(own_server: EmbeddedServer, watcher: Watcher) -> None:
    """D14: every call has a deadline; leaving takes no longer than it is given, also in the middle of a call."""
    store = Store(own_server.url("feed_test"))
    migrate(store)
    watcher.watch(lambda: store)
    watcher.live()
    leaver = Watcher()
    feed = leaver.watch(lambda: store)
    leaver.live()
    _signal_all(own_server, signal.SIGSTOP)
    # No sign of life for two beats: it is inside a call, and the deadline of that is seconds away.
    eventually(lambda: time.monotonic() - leaver.updates[-1].mono > 2.0)
    began = time.monotonic()
    feed.stop(0.5)
    assert time.monotonic() - began < 2.0
    eventually(lambda: watcher.state() == "lost", 30)
    _signal_all(own_server, signal.SIGCONT)


def test_a_frozen_server_that_thaws_is_live_again(own_server: EmbeddedServer, watcher: Watcher) -> None:
    store = Store(own_server.url("feed_test"))
    migrate(store)
    watcher.watch(lambda: store)
    watcher.live()
    _signal_all(own_server, signal.SIGSTOP)
    eventually(lambda: watcher.state() == "lost", 30)
    _signal_all(own_server, signal.SIGCONT)
    eventually(lambda: watcher.state() == "live", 45)


def test_a_database_that_was_never_there_is_tried_again_with_growing_pauses(watcher: Watcher) -> None:
    watcher.watch(lambda: Store("postgresql://nobody:secret@127.0.0.1:1/none"))
    lost = eventually(lambda: [u for u in watcher.updates if u.state == "lost"][3:], 30)
    pauses = [u.next_try_s or 0 for u in watcher.updates if u.state == "lost"]
    assert pauses[-1] > pauses[0] and max(pauses) <= 30
    assert "secret" not in (lost[-1].error or "")


def test_it_is_tried_for_ever_and_never_rarer_than_the_cap(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: the pauses stop growing, the tries do not stop."""
    assert feed_module.BACKOFF_MOST_S <= 30
    monkeypatch.setattr(feed_module, "BACKOFF_FIRST_S", 0.05)
    monkeypatch.setattr(feed_module, "BACKOFF_MOST_S", 0.2)
    with RefusingServer() as server:
        watcher.watch(lambda: Store(server.url))
        eventually(lambda: len(server.tries) >= 15)
        pauses = [update.next_try_s or 0.0 for update in list(watcher.updates) if update.state == "lost"]
    assert len(pauses) >= 14 and max(pauses) <= 0.2
    assert min(pauses[5:]) > 0.1, "and they have grown"


def test_an_opener_that_raises_is_tried_again(store: Store, watcher: Watcher) -> None:
    tries = iter(range(100))

    def opener() -> Store:
        if next(tries) < 2:
            raise StoreUnavailable("not yet")
        return store

    watcher.watch(opener)
    watcher.live()
    assert [u.error for u in watcher.updates if u.state == "lost"] == ["not yet", "not yet"]


def test_a_database_without_our_schema_says_what_to_do(pg_empty_url: str, watcher: Watcher) -> None:
    store = Store(pg_empty_url)
    watcher.watch(lambda: store)
    lost = eventually(lambda: next((u for u in watcher.updates if u.state == "lost"), None), 20)
    assert "queue-broker bootstrap" in (lost.error or "")
    migrate(store)
    watcher.live()


def test_a_read_only_feed_writes_nothing(store: Store, db: Db, watcher: Watcher) -> None:
    watcher.watch(lambda: store, read_only=True)
    watcher.live()
    record(db, "kestrel", cpu_pct=5.0)
    eventually(lambda: watcher.samples("kestrel"), 10)


def test_a_receiver_that_fails_does_not_end_the_feed(store: Store, watcher: Watcher) -> None:
    failed = threading.Event()

    def receive(update: FeedUpdate) -> None:
        if update.view and not failed.is_set():
            failed.set()
            raise RuntimeError("the screen is on fire")
        watcher.updates.append(update)

    feed = Feed(lambda: store, receive)
    watcher.feeds.append(feed)
    feed.start()
    assert failed.wait(20)
    eventually(lambda: watcher.state() == "live", 20)


def test_a_request_for_a_refresh_is_answered_at_once(store: Store, db: Db, watcher: Watcher) -> None:
    feed = watcher.watch(lambda: store, refresh_s=30.0)
    watcher.live()
    db.run("insert into worker_heartbeats (box, queue, state) values ('b', 'cpu', 'running')")
    feed.request_refresh()
    eventually(lambda: watcher.views() == 2, 10)
