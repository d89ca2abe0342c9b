"""A replay: the clock that can be stopped, hastened and moved; what it shows; a real fleet, recorded and played back."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from engine.commands import broker
from engine.commands.options import run_app
from engine.errors import BadInput
from engine.feed import FeedUpdate
from engine.queue import workers
from engine.queue.workers import Worker
from engine.store import Db, Store
from engine.telemetry import writer as history_writer
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from flightdeck.cli import cli
from flightdeck.frame import render_frame, screen_text, settle
from flightdeck.model.deck import Clock, Deck
from flightdeck.reader import Answer
from flightdeck.record import Recorder
from flightdeck.recording import Recording, Said, Writer
from flightdeck.replay import BASE, NOT_RECORDED, SPEEDS, Player, Playhead, RecordedAnswers, place, together
from flightdeck.replay_app import ReplayApp
from tests.deck.fleet_data import four_boxes
from tests.deck.fleet_data import update as made
from tests.deck.piloting import Crew
from tests.deck.test_recording import flight, written
from tests.support import Processes, command, eventually


class Time:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    answers = [
        (10.0, Said("job", {"job_id": "7"}, {"status": "running"})),
        (40.0, Said("job", {"job_id": "7"}, {"status": "failed"})),
    ]
    return Recording.load(written(tmp_path_factory.mktemp("recording") / "r", flight(), answers))


def test_time_runs_at_the_speed_that_was_chosen(recording: Recording) -> None:
    time = Time()
    head = Playhead(recording, 10.0, 1.0, time)
    time.now += 2.0
    assert head.position() == pytest.approx(12.0) and head.words() == "x1"
    head.change_speed(2)
    time.now += 2.0
    assert head.position() == pytest.approx(20.0) and head.words() == "x4"
    head.toggle()
    time.now += 100.0
    assert head.position() == pytest.approx(20.0) and head.words() == "paused"
    head.toggle()
    time.now += 1000.0
    assert head.position() == recording.duration_s and head.ended and head.words() == "end"
    head.toggle()  # at the end: from the start again
    assert head.position() == 0.0 and head.running
    head.jump(-5.0)
    assert head.position() == 0.0
    head.jump(1e9)
    assert head.position() == recording.duration_s
    for _ in SPEEDS:
        head.change_speed(-1)
    assert head.speed == SPEEDS[0]


def test_the_deck_is_given_the_clock_of_then(recording: Recording) -> None:
    time = Time()
    clock = Playhead(recording, 30.0, 1.0, time).clock()
    time.now += 1.5
    assert clock.mono() == pytest.approx(BASE + 31.5)
    assert (clock.wall() - recording.header.at).total_seconds() == pytest.approx(31.5)


class Screen:
    """What a player shows, on a deck without a screen."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.deck = Deck(clock)
        self.updates: list[FeedUpdate] = []
        self.afresh = 0

    def show(self, updates: list[FeedUpdate], afresh: bool) -> None:
        if afresh:
            self.deck = Deck(self.clock)
        for update in updates:
            self.deck.apply(update)
        self.updates += updates
        self.afresh += afresh


def what_it_knows(deck: Deck) -> tuple[Any, ...]:
    """Everything on screen, as values."""
    rings = {
        (box, key): (list(ring.stamp), list(ring.lo), list(ring.hi), ring.last)
        for box, history in deck.histories.items()
        for key, ring in history.rings.items()
    }
    return deck.view, rings, deck.link.state, deck.link.error


def straight(recording: Recording, until_s: float) -> Deck:
    """A deck that took in every update up to then, one by one."""
    deck = Deck(Clock(lambda: BASE + until_s, lambda: recording.header.at))
    for update in recording.updates(0, len(recording.times()), BASE):
        if update.mono <= BASE + until_s:
            deck.apply(update)
    return deck


@pytest.mark.parametrize("at_s", [0.0, 0.3, 33.3, 60.9, 92.0, 95.0])
def test_a_jump_shows_what_playing_to_there_shows(recording: Recording, at_s: float) -> None:
    """Also into an outage, where the data before it stays, and past one."""
    deck = Deck(Clock(lambda: BASE + at_s, lambda: recording.header.at))
    for update in recording.still(at_s, BASE):
        deck.apply(update)
    assert what_it_knows(deck) == what_it_knows(straight(recording, at_s))
    assert (deck.live_age() or 0.0) < 6.0


def test_a_jump_far_into_a_long_night_shows_the_hour_before_it(tmp_path: Path) -> None:
    """Hours after the start: the same hour as by playing there, and a box that fell silent long ago with its last sample."""
    fleet = four_boxes()
    updates = [made(view=fleet.view(), history=fleet.hour(300))]
    for second in range(100, 12_000, 100):
        silent = "spark" if second > 2_000 else ""
        tick = fleet.tick(second)
        updates.append(replace(tick, view=fleet.view(), samples=tuple(s for s in tick.samples if s.box != silent)))
    recording = Recording.load(written(tmp_path / "night", updates))
    deck = Deck(Clock(lambda: BASE + 11_000.0, lambda: recording.header.at))
    for one in recording.still(11_000.0, BASE):
        assert len((one.history or {})["beelink"]) < 60, "no more than is needed"
        deck.apply(one)
    other = straight(recording, 11_000.0)
    assert deck.view == other.view
    for box in deck.boxes():
        mine, theirs = deck.history(box), other.history(box)
        assert mine.latest == theirs.latest
        for key, ring in mine.rings.items():
            assert ring.columns(deck.end_slot(box), 12, 60) == theirs.rings[key].columns(deck.end_slot(box), 12, 60)
    dead = next(box for box in deck.boxes() if box.name == "spark")
    assert deck.sample_age(dead) == pytest.approx(9_000.0, abs=1.0) and deck.box_state(dead) == "blind"


def test_updates_brought_together_say_the_same(recording: Recording) -> None:
    updates = recording.updates(0, len(recording.times()), BASE)
    few = together(updates)
    assert len(few) < 8
    one, other = (Deck(Clock(lambda: BASE + 95.0, lambda: recording.header.at)) for _ in range(2))
    for update in updates:
        one.apply(update)
    for update in few:
        other.apply(update)
    assert what_it_knows(one) == what_it_knows(other)


def test_a_player_brings_what_is_due_and_follows_jumps(recording: Recording) -> None:
    """At 64 times the speed a minute and a half passes by; then back into the middle, and to the end again."""
    head = Playhead(recording, 0.0, 64.0)
    screen = Screen(head.clock())
    player = Player(recording, head, screen.show)
    player.start()
    try:
        eventually(lambda: screen.updates and screen.updates[-1].mono >= BASE + 95.0, what="the end")
        assert what_it_knows(screen.deck) == what_it_knows(straight(recording, 95.0))
        head.toggle()  # from the start again
        eventually(lambda: screen.afresh == 2)
        head.toggle()
        head.jump(40.0)
        eventually(lambda: screen.afresh == 3)
        assert what_it_knows(screen.deck) == what_it_knows(straight(recording, 40.0))
        count = len(screen.updates)
        head.toggle()
        eventually(lambda: len(screen.updates) > count, what="it goes on")
    finally:
        player.stop()
    assert not player._thread.is_alive()


def test_answers_follow_the_time(recording: Recording) -> None:
    """A page hears the answer of the time that is played, a newer one when it is due, the older one after a jump back."""
    time = Time()
    head = Playhead(recording, 12.0, 1.0, time)
    heard: list[Answer] = []
    soon: Callable[..., None] = lambda work, *arguments: work(*arguments)  # noqa: E731
    reader = RecordedAnswers(recording, head, soon)
    ask = reader.ask("job", {"job_id": "7"}, heard.append, every_s=2.0)
    assert [answer.value for answer in heard] == [{"status": "running"}]
    reader.look()
    assert len(heard) == 1
    time.now += 40.0
    reader.look()
    assert heard[-1].value == {"status": "failed"} and len(heard) == 2
    head.jump(11.0)
    reader.look()
    assert heard[-1].value == {"status": "running"} and len(heard) == 3
    head.jump(12.0)
    reader.look()
    assert len(heard) == 4, "the same answer once more: a jump forgets"
    ask.stop()
    head.jump(90.0)
    reader.look()
    assert len(heard) == 4
    reader.ask("job", {"job_id": "8"}, heard.append)
    assert heard[-1].value is None and heard[-1].error == NOT_RECORDED
    reader.close()


def test_an_hour_of_throttling_is_answered_from_the_recorded_day(tmp_path: Path) -> None:
    """The page said "not in this recording" below each single hour."""

    def ran(number: int, began: str, ended: str) -> dict[str, str]:
        day = "2026-03-04T"
        return {"job_id": str(number), "started_at": f"{day}{began}:00+00:00", "finished_at": f"{day}{ended}:00+00:00"}

    rows = [ran(1, "09:10", "09:50"), ran(2, "09:40", "10:20"), ran(3, "10:30", "12:00"), ran(4, "12:10", "12:20")]
    said = [
        (5.0, Said("throttle_jobs", {"span_s": 86400, "box": "spark"}, [*rows, {"job_id": "odd"}, "odd"])),
        (5.0, Said("throttle_jobs", {"span_s": 86400}, None, "it did not answer")),
    ]
    recording = Recording.load(written(tmp_path / "r", flight(), said))
    heard: list[Answer] = []
    reader = RecordedAnswers(recording, Playhead(recording, 12.0, 1.0, Time()), lambda work, *rest: work(*rest))
    hour = {"since": "2026-03-04T10:00:00+00:00", "until": "2026-03-04T11:00:00+00:00", "span_s": 86400}
    reader.ask("throttle_jobs", hour | {"box": "spark"}, heard.append)
    assert [row["job_id"] for row in heard[-1].value] == ["2", "3"] and not heard[-1].error
    reader.ask("throttle_jobs", hour, heard.append)
    assert (heard[-1].value, heard[-1].error) == (None, "it did not answer")
    reader.ask("throttle_jobs", hour | {"box": "attic"}, heard.append)
    assert (heard[-1].value, heard[-1].error) == (None, NOT_RECORDED)
    reader.close()


def test_a_place_in_the_recording(recording: Recording) -> None:
    """The recording starts at 14:03:22 of the viewer's day."""
    assert place("90s", recording) == 90.0 and place("1m", recording) == 60.0
    assert place("+10s", recording, 20.0) == 30.0 and place("-10s", recording, 20.0) == 10.0
    assert place("14:04", recording) == 38.0 and place("14:03:32", recording) == 10.0
    assert place("2026-03-04T14:03:52+00:00", recording) == 30.0
    assert place("2026-03-04T14:03:52", recording) == 30.0
    assert (place("start", recording), place("end", recording), place("0", recording)) == (0.0, recording.duration_s, 0)
    for odd in ("", "soon", "25:99", "1:2:3:4", "-", "2026-13-01T00:00"):
        with pytest.raises(BadInput, match="no time of the recording"):
            place(odd, recording)


def crew(recording: Recording, at_s: float, flight: Callable[[ReplayApp, Crew, Time], Awaitable[None]]) -> None:
    """Fly a replay whose time moves when it is told to."""

    async def run() -> None:
        time = Time()
        app = ReplayApp(recording, Playhead(recording, at_s, 1.0, time), store_name="night.jsonl")
        async with app.run_test(size=(150, 30)):
            pilot = Crew(app)
            await settle(app, pilot)
            await told(app, pilot, lambda: app.deck.loaded)
            await flight(app, pilot, time)

    asyncio.run(run())


async def told(app: ReplayApp, pilot: Crew, look: Callable[[], object]) -> None:
    """Wait until the player has brought something."""
    for _ in range(3000):
        if look():
            break
        await asyncio.sleep(0.01)
    assert look()
    app.flush()
    await settle(app, pilot)


def test_a_replay_is_flown_by_keys(recording: Recording) -> None:
    """It says what it is and what time it was; space, speed, jumps, a time by its name."""

    async def flight(app: ReplayApp, pilot: Crew, time: Time) -> None:
        head = app.head
        first = screen_text(app).split("\n")[0]
        assert "REPLAY x1" in first and "14:03:32" in first and "live" not in first
        await pilot.press("space")
        assert not head.running and "REPLAY paused" in screen_text(app)
        await pilot.press("right_curly_bracket")
        assert head.position() == pytest.approx(70.0) and "at 1:10 of 1:35" in screen_text(app)
        await told(app, pilot, lambda: app.deck.link.mono == BASE + 70.0)
        assert "14:04:32" in screen_text(app).split("\n")[0]
        await pilot.press("left_curly_bracket", "plus", "plus", "minus")
        assert head.position() == pytest.approx(10.0) and head.speed == 2.0
        await pilot.press("f")
        assert app.frozen is not None
        assert "pause" in screen_text(app).split("\n")[-1] and "quit" in screen_text(app).split("\n")[-1]
        await pilot.press("at", *"+5s", "enter")
        await told(app, pilot, lambda: app.frozen is None)  # a jump lets go of a picture that stands
        assert head.position() == pytest.approx(15.0)
        await pilot.press("at", *"noon", "enter")
        assert head.position() == pytest.approx(15.0) and "no time of the recording" in screen_text(app)
        await pilot.press("space")
        time.now += 100.0
        await told(app, pilot, lambda: app.deck.link.mono == BASE + 95.0)
        assert "REPLAY end" in screen_text(app).split("\n")[0]

    crew(recording, 10.0, flight)


def test_a_replay_shows_an_outage_as_it_was(recording: Recording) -> None:
    """The banner of then, with the age of then; and the fleet again after a jump back."""

    async def flight(app: ReplayApp, pilot: Crew, time: Time) -> None:
        assert "DATABASE LOST" in screen_text(app) and "connection refused" in screen_text(app)
        await pilot.press("space", "left_curly_bracket")
        await told(app, pilot, lambda: app.deck.link.state == "live")
        assert "DATABASE LOST" not in screen_text(app)

    crew(recording, 91.0, flight)


def test_a_replay_offers_no_orders(recording: Recording) -> None:
    """D17: no key, no entry, no hint that would change something; and what it offers is in the help."""

    async def flight(app: ReplayApp, pilot: Crew, time: Time) -> None:
        assert app.read_only and app.desk is None
        assert not [action.id for action in app.actions if action.writes]
        keys = [key for action in app.actions for key in action.keys]
        assert len(keys) == len(set(keys)), "a key means one thing"
        await pilot.press("question_mark")
        text = screen_text(app)
        assert "Stop or go on" in text and "Park" not in text

    crew(recording, 10.0, flight)


class Keeping(Writer):
    """A writer that also remembers what it was given."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "fleet")
        self.kept: list[FeedUpdate] = []

    def update(self, update: FeedUpdate) -> None:
        if update.state != "connecting":
            self.kept.append(update)
        super().update(update)


def test_a_real_fleet_recorded_and_played_back(pg_store: Store, tmp_path: Path) -> None:
    """A live feed on PostgreSQL: samples, a lane, an order; the frames of the replay are those of the deck itself."""
    writer = Keeping(tmp_path / "fleet.jsonl.gz")
    recorder = Recorder(pg_store, writer, threading.Event())
    thread = threading.Thread(target=recorder.run, args=(60.0,))
    with pg_store.connect("test") as db:
        box = Worker("osprey", "gpu", "", "0123456789abcdef")
        history_writer.write_facts(db, BoxFacts("osprey", cores=8, gpus=(GpuFacts(0, name="card"),)))
        workers.beat(db, box, state="running", slots=1, busy=0, version="0")
        measure(db, 61.0)
        thread.start()
        try:
            eventually(lambda: any(update.view for update in writer.kept), what="a first view")
            measure(db, 71.5)
            eventually(lambda: any(update.samples for update in writer.kept), what="a sample")
            workers.beat(db, box, state="parked", slots=1, busy=0, version="0")
            eventually(lambda: "parked" in repr([update.view for update in writer.kept]), what="the lane is parked")
        finally:
            recorder.stop()
            thread.join()
            writer.close()
    assert recorder.failure == ""
    recording = Recording.load(tmp_path / "fleet.jsonl.gz")
    back = recording.updates(0, len(recording.times()), writer.kept[0].mono)
    assert len(back) == len(writer.kept)
    frame, again = (render_frame(updates, (100, 30)) for updates in (writer.kept, back))
    assert "osprey" in frame.text and "72" in frame.text
    assert again == frame


def measure(db: Db, temp_c: float) -> None:
    sample = BoxSample("osprey", db.now(), cpu_pct=40.0, gpus=(GpuSample(0, temp_c=temp_c, power_w=200.0),))
    recorder = history_writer.Recorder("osprey", "0" * 16, 1, "0")
    history_writer.write(db, recorder, [sample], payload=sample.payload(), last_error=None)


def told_by(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        run_app(cli, "flightdeck", list(args), store_code=2)
    return int(ended.value.code or 0), capsys.readouterr().err


def test_what_cannot_be_played_or_recorded_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sqlite_url: str
) -> None:
    """Exit 2, one line, nothing made."""
    text = tmp_path / "text"
    text.write_text("not a recording\n")
    whole = str(written(tmp_path / "whole", flight()))
    for args, said in (
        (("replay", str(tmp_path / "none")), "No such file"),
        (("replay", str(text)), "no recording"),
        (("replay", whole, "--at", "noon"), "no time of the recording"),
        (("replay", whole, "--speed", "900"), "--speed"),
        (("record", whole, "--db", sqlite_url), "is there already"),
        (("record", str(tmp_path / "no" / "where"), "--db", sqlite_url), "No such file"),
        (("record", str(tmp_path / "new"), "--for", "soon", "--db", sqlite_url), "no time span"),
        (("record", str(tmp_path / "new"), "--db", f"sqlite:///{tmp_path}/typo.db"), "no database at"),
        (("snapshot", "--db", f"sqlite:///{tmp_path}/typo.db"), "no database at"),
    ):
        code, err = told_by(capsys, *args)
        assert code == 2 and said in err and err.count("\n") == 1, args
    assert not (tmp_path / "typo.db").exists() and not (tmp_path / "new").exists()


def test_record_ends_by_itself_and_says_what_it_has(tmp_path: Path, processes: Processes, sqlite_url: str) -> None:
    file = tmp_path / "night.jsonl.gz"
    process = processes.spawn(command("flightdeck", "record", str(file), "--for", "1s", "--db", sqlite_url))
    assert process.wait(60) == 0, processes.log(process)
    assert "kB in" in processes.log(process)
    assert Recording.load(file).times()


def test_record_told_to_stop_leaves_a_whole_file(tmp_path: Path, processes: Processes, sqlite_url: str) -> None:
    file = tmp_path / "night.jsonl.gz"
    process = processes.spawn(command("flightdeck", "record", str(file), "--db", sqlite_url))
    eventually(lambda: "recording" in processes.log(process), 60.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, processes.log(process)
    try:
        assert not Recording.load(file).cut
    except BadInput as error:
        assert "no update" in str(error)  # it was stopped before the first


def test_every_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    for name, app in (("flightdeck", cli), ("queue-broker", broker.app)):
        with pytest.raises(SystemExit) as ended:
            run_app(app, name, ["--version"])
        assert not ended.value.code and capsys.readouterr().out == f"{name} {metadata.version('flightdeck')}\n"


def test_a_full_disk_ends_a_recording_and_says_so(sqlite_store: Store, tmp_path: Path) -> None:
    class Full(Writer):
        def update(self, update: FeedUpdate) -> None:
            raise OSError(28, "No space left on device")

    recorder = Recorder(sqlite_store, Full(tmp_path / "r", "fleet"), threading.Event())
    recorder.run(60.0)
    assert recorder.failure == "No space left on device"
