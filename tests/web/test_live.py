"""GET /events: what changes, told by a real server as it happens; who falls behind, comes back, or is one too many."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from engine.store import Store
from engine.web import hub
from engine.web.databases import Databases
from engine.web.hub import JOBS_KEPT, Hub, Listener, message
from tests.support import Processes, eventually
from tests.web.conftest import READ, Service, start_service
from tests.web.fleet_rows import event, seed

Told = tuple[str, str, Any]  # event, id, data


class Stream:
    """The events of one connection, read when they are asked for."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.iter_lines()

    def next(self) -> Told:
        name = number = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                return name, number, json.loads(line[6:])
        raise EOFError

    def until(self, wanted: Callable[[Told], bool]) -> Told:
        while not wanted(found := self.next()):
            pass
        return found


@contextmanager
def listening(service: Service, query: str = "", **headers: str) -> Iterator[Stream]:
    with service.client(READ) as client, client.stream("GET", f"/events{query}", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


def live(stream: Stream) -> None:
    """Until the view is there: what happens from now on is told."""
    stream.until(lambda told: told[0] == "fleet")


def test_what_happens_is_told_and_told_again_to_who_comes_back(service: Service) -> None:
    with service.store.connect("test") as db:
        seed(db)
        with listening(service) as stream:
            assert stream.until(lambda told: told[0] == "state" and told[2]["state"] == "live")[2]["at"]
            view = stream.until(lambda told: told[0] == "fleet")[2]
            assert {box["box"] for box in view["boxes"]} == {"spark", "kite"} and "events" not in view
            event(db, 4711, "completed", "training", "", "spark")
            _, number, told = stream.until(lambda told: told[0] == "job")
            assert (told["job_id"], told["type"], told["id"]) == ("4711", "completed", number) and "detail" not in told
        for missed in (4712, 4713):
            event(db, missed, "failed", "training", "", "spark")
        with listening(service, "?only=job", **{"last-event-id": number}) as stream:
            assert [stream.next()[2]["job_id"] for _ in range(2)] == ["4712", "4713"]
        with listening(service, "?only=job&project=other", **{"last-event-id": number}) as stream:
            event(db, 4714, "failed", "training", "other", "spark")
            assert stream.next()[2]["job_id"] == "4714"


def test_one_listener_too_many_is_told_to_come_again_and_all_end_with_the_service(
    processes: Processes, sqlite_store: Store
) -> None:
    service = start_service(processes, sqlite_store)
    with service.client(READ) as client, sqlite_store.connect("test") as db:
        with ExitStack() as stack:
            streams = [
                Stream(stack.enter_context(client.stream("GET", "/events?only=changed")))
                for _ in range(hub.LISTENERS_MOST)
            ]
            assert {stream.answer.status_code for stream in streams} == {200}
            streams[0].until(lambda told: "fleet" in told[2]["what"])  # it was there before the first look
            event(db, 1, "completed", "training", "", "spark")
            assert {stream.next()[0] for stream in streams} == {"changed"}
            answer = client.get("/events")
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            assert client.get("/events?only=weather").status_code == 422
            assert client.get("/events", headers={"last-event-id": "x"}).status_code == 422

        def place() -> bool:
            with client.stream("GET", "/events?only=changed") as answer:
                return answer.status_code == 200

        eventually(place, what="the places are free again")
        with client.stream("GET", "/events") as answer:
            last = Stream(answer)
            live(last)
            service.process.send_signal(signal.SIGTERM)
            with pytest.raises((EOFError, httpx.RemoteProtocolError)):
                last.until(lambda told: False)
    assert service.process.wait(60) == 0
    assert "Traceback" not in service.log() and "without completing" not in service.log()


# -- what waits for one listener


def test_what_replaces_itself_is_kept_once() -> None:
    listener = Listener(frozenset({"fleet", "samples", "changed"}))
    for number in range(1000):
        listener.put("fleet", message("fleet", str(number)))
        listener.put("state", message("state", "{}"))
        listener.put_samples({"spark": str(number), "kite": "0"})
    assert listener.take() == "event: fleet\ndata: 999\n\nevent: samples\ndata: [999,0]\n\n"
    assert listener.take() == "" and not listener.over


def test_who_falls_behind_is_dropped_and_not_buffered() -> None:
    listener = Listener(frozenset({"job"}))
    for number in range(JOBS_KEPT):
        listener.put_job(number, "", "x")
        listener.put_job(number, "", "x")  # once is enough
    assert not listener.over
    listener.put_job(JOBS_KEPT, "", "x")
    assert listener.over and listener.ready.is_set()


def test_what_happened_before_is_told_before() -> None:
    listener = Listener(frozenset({"job"}))
    listener.waits = True
    listener.put_job(7, "", "7")
    assert listener.take() == ""
    listener.put_before([(5, "", "5"), (6, "other", "6"), (7, "", "7")])
    assert listener.take() == "567"


def test_the_feed_runs_while_somebody_listens(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LINGER_S", 0.0)

    async def story() -> None:
        databases = Databases(lambda: sqlite_store, 2, 5.0)
        one = Hub(databases, asyncio.Event())
        before = set(threading.enumerate())

        def feeds() -> list[str]:
            return [thread.name for thread in set(threading.enumerate()) - before if thread.name == "feed"]

        first, second = Listener(frozenset({"fleet"})), Listener(frozenset({"fleet"}))
        assert not feeds() and one.join(first) and one.join(second) and len(feeds()) == 1
        async with asyncio.timeout(60):
            await first.ready.wait()
        one.leave(first)
        assert feeds()
        one.leave(second)
        async with asyncio.timeout(60):
            while feeds():
                await asyncio.sleep(0.01)
        databases.close()

    asyncio.run(story())


def test_events_that_one_view_cannot_hold_are_read(sqlite_store: Store) -> None:
    databases = Databases(lambda: sqlite_store, 2, 5.0)
    one = Hub(databases, asyncio.Event())
    with sqlite_store.connect("test") as db:
        from engine.queue import events

        def newest() -> list[dict[str, Any]]:
            return events.recent(db, 50)

        event(db, 1, "completed", "training", "", "spark")
        assert one._new_events(newest()) == ([], False)
        for number in range(2, 200):
            event(db, number, "completed", "training", "", "spark")
        told, gap = one._new_events(newest())
        assert [int(row["job_id"]) for row in told] == list(range(2, 200)) and not gap
        for number in range(200, 800):
            event(db, number, "completed", "training", "", "spark")
        told, gap = one._new_events(newest())
        assert gap and [int(row["job_id"]) for row in told] == list(range(300, 800))
        assert one._new_events(newest()) == ([], False)
    databases.close()
