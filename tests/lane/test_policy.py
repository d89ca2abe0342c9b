"""The lane's decisions, as values: frames, budgets, duty, claims ahead, devices, exits, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import config
from engine.errors import BadInput, ConfigError, UnknownQueue
from engine.lane import devices, exits, watchdogs
from engine.lane.ahead import Ahead
from engine.lane.duty import Duty
from engine.lane.link import Backoff, Link
from engine.lane.options import LaneOptions
from engine.lane.protocol import ProtocolError, Reader, pack
from engine.lane.start import check
from engine.queue.controls import Order


@settings(max_examples=40)
@given(st.lists(st.tuples(st.binary(max_size=300), st.text(max_size=20)), max_size=8), st.integers(1, 50))
def test_frames_survive_any_cut(messages: list[tuple[bytes, str]], size: int) -> None:
    stream = b"".join(pack("job", payload, text=text) for payload, text in messages)
    reader, seen = Reader(), []
    for at in range(0, len(stream), size):
        seen += reader.feed(stream[at : at + size])
    assert [(frame.payload, frame.header["text"]) for frame in seen] == messages


@pytest.mark.parametrize(
    "garbage", [b"hello world, this is no frame", b"\0\0\0\x02\0\0\0\0[]", b"\0\0\0\x02\0\0\0\0{}"]
)
def test_what_is_no_frame_is_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(garbage)


def test_budget_trips_past_it_and_never_on_gpu() -> None:
    assert watchdogs.budget(9.9, 10.0) is None
    verdict = watchdogs.budget(10.1, 10.0)
    assert verdict is not None and verdict.code == 75 and verdict.evidence["budget_s"] == 10.0
    assert watchdogs.budget(1e9, None) is None
    assert watchdogs.budget_for(True, 5.0, 5.0, 5.0) is None
    assert watchdogs.budget_for(False, None, None, 7.0) == 7.0
    assert watchdogs.budget_for(False, 5.0, 6.0, 7.0) == 5.0
    assert watchdogs.budget_for(False, None, 6.0, 7.0) == 6.0


def test_duty_says_what_the_lane_is_to_do() -> None:
    duty = Duty()
    assert not duty.claiming, "without the lane's lock"
    duty.holding = True
    assert duty.claiming
    duty.order = Order("off", "drain")
    assert duty.draining and not duty.parking and not duty.claiming
    assert duty.state(ever_ready=True, executors=True, work=True) == "draining"
    assert duty.state(ever_ready=True, executors=False, work=False) == "parked"
    duty.order = Order("off", "hard")
    assert duty.state(ever_ready=True, executors=True, work=False) == "parking"
    duty.order = Order()
    assert duty.state(ever_ready=False, executors=True, work=False) == "starting"
    duty.stop(100.0, 30.0)
    assert duty.stop_by == 130.0 and not duty.claiming and duty.back == "drain"
    assert duty.state(ever_ready=True, executors=True, work=True) == "draining"
    duty.stop(101.0, 30.0)
    assert duty.stop_by == 101.0
    assert duty.state(ever_ready=True, executors=False, work=False) == "stopping"


def test_short_jobs_are_claimed_ahead_long_ones_never() -> None:
    ahead = Ahead(limit=64, slots=1)
    assert ahead.depth == 1
    for _ in range(5):
        ahead.ran(0.001)
    assert ahead.short and ahead.depth == 65
    assert ahead.worth_claiming(40, 0, 1) and not ahead.worth_claiming(10, 0, 1) and ahead.worth_claiming(1, 1, 1)
    assert not ahead.flush_due(1, 0.0, 0) and ahead.flush_due(1, 0.01, 0) and ahead.flush_due(1, 0.0, 1)
    for _ in range(20):
        ahead.ran(0.5)
    assert not ahead.short and ahead.depth == 1 and ahead.flush_due(1, 0.0, 0)


def test_tiny_jobs_go_to_few_slots_and_are_written_in_company() -> None:
    ahead = Ahead(limit=64, slots=32)
    for _ in range(5):
        ahead.ran(0.00002)
    assert ahead.pack > 1 and ahead.depth == 3
    assert (
        not ahead.worth_claiming(10, 28, 32) and ahead.worth_claiming(48, 28, 32) and ahead.worth_claiming(10, 32, 32)
    )
    assert not ahead.flush_due(5, 0.0, 28, 40) and ahead.flush_due(40, 0.0, 28, 40) and ahead.flush_due(1, 0.0, 32, 0)
    assert ahead.flush_due(1, 0.01, 28, 90), "nothing waits long for company"
    for _ in range(20):
        ahead.ran(0.010)
    assert ahead.short and ahead.pack == 1


def test_claims_ahead_can_be_switched_off_and_hold_little_work() -> None:
    off, some = Ahead(0, 4), Ahead(64, 4)
    for _ in range(10):
        off.ran(0.001)
        some.ran(0.015)
    assert off.depth == 1 and not off.short
    assert some.depth <= 8, "about a tenth of a second of work a slot"


def test_devices_are_numbers_or_uuids() -> None:
    assert devices.parse_devices("0, 1") == ("0", "1")
    assert devices.parse_devices(None) == ()
    for wrong in ("0,0", "x", "0;rm", "-1", "0,,1"):
        with pytest.raises(BadInput):
            devices.parse_devices(wrong)
    assert devices.models_that_fit({"a": 10.0, "b": 30.0}, [24_000.0]) == ("a",)
    assert devices.models_that_fit({"a": 10.0, "b": 30.0}, [24_000.0, None]) == ("a", "b")


def test_exit_codes_are_explained() -> None:
    assert exits.explain(77).startswith("77 lost claim")
    assert exits.explain(exits.from_returncode(-9)) == "137: killed by SIGKILL"
    assert exits.explain(128 + 99) == "227: the executor ended by itself", "there is no signal 99"
    assert exits.from_returncode(7) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0},
        {"devices": ("0",)},
        {"model_slots": 1},
        {"share_gpu": True},
        {"queue": "gpu", "slots": 2, "devices": ("0",)},
        {"slots": 2, "exit_on_trip": True},
        {"claims_ahead": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        check(LaneOptions(**{"queue": "default", **wrong}))  # type: ignore[arg-type]


def test_beat_interval_longer_than_a_third_of_the_lease_is_refused() -> None:
    """Q5."""
    with pytest.raises(ConfigError, match="third of the lease"):
        check(LaneOptions(queue="default", lease_seconds=29.0, renew_seconds=10.0))
    check(LaneOptions(queue="default", lease_seconds=30.0, renew_seconds=10.0))


def test_an_unknown_queue_is_refused_with_the_known_ones() -> None:
    config.configure(ingest_queues=("default",))
    with pytest.raises(UnknownQueue, match="cpu, gpu, default"):
        check(LaneOptions(queue="nope"))


def test_an_outage_is_one_line_however_often_it_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Q15."""
    link = Link("b1/cpu")
    with caplog.at_level("INFO"):
        for _ in range(1000):
            link.broken("loop", OSError("gone"))
            link.broken("keeper", OSError("gone"))
        link.works("loop")
        assert link.down_since is not None, "the keeper still waits"
        link.works("keeper")
    assert link.down_since is None
    assert len(caplog.records) == 2


def test_pauses_grow_to_a_second_with_jitter_and_start_small_again() -> None:
    """Q15: neither a hot loop nor all lanes at the same moment."""
    runs = [[backoff.wait_s() for _ in range(12)] for backoff in (Backoff(), Backoff())]
    assert runs[0] != runs[1], "two lanes do not knock in step"
    for waits in runs:
        assert 0.03 < waits[0] < 0.1 and all(0.6 < wait < 1.4 for wait in waits[6:])
        assert waits[4] > 4 * waits[0]
    backoff = Backoff()
    for _ in range(12):
        backoff.wait_s()
    backoff.reset()
    assert backoff.wait_s() < 0.1


def test_a_header_with_something_behind_it_is_no_frame() -> None:
    head = b'{"t":"done"} and more'
    with pytest.raises(ProtocolError, match="more behind"):
        Reader().feed(len(head).to_bytes(4, "big") + bytes(4) + head)
