"""What jobs print: one bounded file per job on the box, its end in the database while it runs and when it is over."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine import config
from engine.errors import NotFound, StoreUnavailable
from engine.lane import logs, tails
from engine.lane.book import Book
from engine.lane.tails import Tails
from engine.queue import operate
from engine.queue.claim import ClaimRequest, claim
from engine.queue.finish import Outcome, finish
from engine.queue.logs import TAIL_BYTES, Tail, cut, read_tail, write_tails
from engine.queue.requeue import requeue
from engine.queue.workers import Worker
from engine.store import Db, Store
from tests.lane.fleet import add, add_node, ended, gone, pid_in, row, start_lane, status, stop
from tests.support import Processes, eventually

WORKER = Worker("b1", "default", "", "0123456789abcdef")


# --- texts ---


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (b"plain\n", {}, "plain\n"),
        ("\u00e9\u20ac\U0001f600".encode(), {}, "\u00e9\u20ac\U0001f600"),
        (b"a\x00b\x1b[31m", {}, "ab\x1b[31m"),
        (b"\xff\xfe", {}, "\ufffd\ufffd"),
        ("x\u20acy".encode()[2:], {"whole": False}, "y"),
        ("x\U0001f600y".encode()[2:], {"whole": False}, "y"),
        ("x\u20ac".encode()[:-1], {"over": False}, "x"),
        ("x\U0001f600".encode()[:-1], {"over": False}, "x"),
        ("x\u20ac".encode()[:-1], {"over": True}, "x\ufffd"),
        (b"12345", {"limit": 3}, "345"),
        ("1\u20ac5".encode(), {"limit": 3}, "5"),
        (b"\xff\xff\xff", {"limit": 3}, "\ufffd"),
        (b"", {}, ""),
    ],
)
def test_a_tail_is_cut_between_characters_and_holds_no_nul(data: bytes, options: dict[str, Any], text: str) -> None:
    assert cut(data, **options) == text


@given(st.binary(max_size=200), st.booleans(), st.booleans(), st.integers(1, 64))
def test_any_bytes_become_text_within_the_limit(data: bytes, whole: bool, over: bool, limit: int) -> None:
    text = cut(data, whole=whole, over=over, limit=limit)
    assert len(text.encode()) <= limit and "\0" not in text


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50), st.integers(1, 64))
def test_text_keeps_its_end(text: str, limit: int) -> None:
    kept = cut(text.encode(), limit=limit)
    assert text.endswith(kept) and len(text.encode()) - len(kept.encode()) <= max(0, len(text.encode()) - limit) + 3


# --- files ---


def test_a_log_is_bounded_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "job-1-1.log"
    with path.open("ab") as out:
        out.write(b"a" * 300_000 + b"the end")
        out.flush()
        logs.bound([path], limit=100_000)
        assert path.stat().st_blocks * 512 <= 100_000
        assert path.read_bytes().endswith(b"aaathe end")


def test_old_logs_go_by_count_age_and_room(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"

    def make(directory: Path, count: int) -> None:
        directory.mkdir(exist_ok=True)
        for index in range(count):
            (directory / f"job-{index}-1.log").write_bytes(b"x" * 4096)
            os.utime(directory / f"job-{index}-1.log", (time.time() - 60 * index, time.time() - 60 * index))

    def names(directory: Path) -> list[str]:
        return sorted(path.name for path in directory.iterdir())

    make(mine, 5)
    make(other, 5)
    (mine / "slot-0.log").write_text("not a job's")
    config.configure(log_keep_files=2)
    logs.prune(mine)
    assert names(mine) == ["job-0-1.log", "job-1-1.log", "slot-0.log"] and len(names(other)) == 5
    config.configure(log_keep_days=3.5 * 60 / 86400)
    logs.prune(mine)
    assert names(other) == [f"job-{i}-1.log" for i in range(4)]
    config.configure(log_total_bytes=3 * (other / "job-0-1.log").stat().st_blocks * 512)
    logs.prune(mine)
    assert len(names(mine)) - 1 + len(names(other)) == 3
    config.configure(log_total_bytes=0, log_keep_files=0, log_keep_days=0)
    logs.prune(mine)
    assert len(names(mine)) - 1 + len(names(other)) == 3


# --- rows ---


def took(db: Db, worker: Worker = WORKER) -> Tail:
    """A claimed job, as the beginning of its tail."""
    job = claim(db, ClaimRequest(worker=worker, n=1, lease_s=600.0))[0]
    return Tail(job.id, job.fencing_token, job.attempt, "", 0)


def says(tail: Tail, text: str) -> Tail:
    return Tail(tail.job_id, tail.fencing_token, tail.attempt, text, len(text))


def test_tails_of_many_jobs_are_one_write_and_the_newest_stays(db: Db) -> None:
    for _ in range(3):
        add(db, "noop", project="")
    held = [took(db) for _ in range(3)]
    write_tails(db, WORKER, [says(tail, f"first {i} \u20ac") for i, tail in enumerate(held[:2])])
    write_tails(db, WORKER, [says(held[0], "second"), says(held[2], 'quote " and \\ back')])
    assert [read_tail(db, tail.job_id) for tail in held] == ["second", "first 1 \u20ac", 'quote " and \\ back']
    found = db.one("select * from job_logs where job_id = {id}", id=held[0].job_id)
    assert found is not None and (found["family"], found["attempt"], found["bytes"]) == ("ingest", 1, 6)
    write_tails(db, WORKER, [])


def test_a_late_tail_of_an_old_attempt_changes_nothing(db: Db) -> None:
    """Q2: an attempt that lost its claim does not write over the log of the next one."""
    job = add(db, "noop")
    old = took(db)
    requeue(db, WORKER, {job: old.fencing_token}, "executor_died")
    write_tails(db, WORKER, [says(old, "my last words")])
    assert read_tail(db, job) == "my last words", "nobody else has begun"
    other = Worker("b2", "default", "", "fedcba9876543210")
    new = took(db, other)
    write_tails(db, WORKER, [says(old, "too late")])
    assert read_tail(db, job) == "my last words"
    write_tails(db, other, [says(new, "mine")])
    write_tails(db, WORKER, [says(old, "too late"), says(Tail(job, new.fencing_token, 1, "", 0), "a forged fence")])
    assert read_tail(db, job) == "mine"
    finish(db, other, [Outcome(job, new.fencing_token, "completed")])
    write_tails(db, other, [says(new, "mine, to the end")])
    assert read_tail(db, job) == "mine, to the end"


def test_the_log_of_a_job_is_read_by_its_id(store: Store, db: Db) -> None:
    config.configure(db_url=store.url)
    job = add(db, "noop")
    assert engine.job_log(job) == ""
    write_tails(db, WORKER, [says(took(db), "hello")])
    assert engine.job_log(str(job)) == "hello"
    with pytest.raises(NotFound):
        engine.job_log(10**12)


def test_what_cannot_be_written_waits_and_is_bounded(
    store: Store, db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "WAITING", 3)
    for _ in range(5):
        add(db, "noop")
    book = Book()
    kept = Tails(WORKER, tmp_path / "logs" / "lane", book, lambda: None)
    (tmp_path / "logs" / "lane").mkdir(parents=True)
    jobs = claim(db, ClaimRequest(worker=WORKER, n=5, lease_s=600.0))
    for held in book.add(jobs):
        logs.job_log(tmp_path / "logs" / "lane", held.job.id, 1).write_text(f"of {held.job.id}")
        kept.ended(held)
    away = store.connect("away")
    away.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            kept.tend(away)
    kept.tend(db)
    assert [read_tail(db, job.id) for job in jobs] == ["", "", *(f"of {job.id}" for job in jobs[2:])]


def test_a_full_disk_is_named_once_and_so_is_its_end(
    db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job's own error is "No space left on device", without a word about which."""
    caplog.set_level("INFO", "engine.lane")
    assert (logs.room(tmp_path) or 0) > 0 and logs.room(tmp_path / "none") is None
    monkeypatch.setenv("FLIGHTDECK_LOG_TAIL_SECONDS", "0")
    kept = Tails(WORKER, tmp_path, Book(), lambda: None)
    for room in (None, 1 << 30, 100_000, 0, 4096, 100_000, None, 0, 1 << 21, 1 << 21, 500_000, 0):
        monkeypatch.setattr(logs, "room", lambda log_dir, room=room: room)
        kept.tend(db)
    said = [record.getMessage() for record in caplog.records if record.name == "engine.lane"]
    assert [text.split(": ")[0] for text in said] == [str(tmp_path)] * 3
    assert ["the disk is full" in text for text in said] == [True, False, True]


# --- a lane ---

OFTEN = {"FLIGHTDECK_LOG_TAIL_SECONDS": "0.2"}


def tail_of(db: Db, job: int) -> str:
    return read_tail(db, job)


def test_a_job_can_be_read_while_it_runs_and_after(store: Store, db: Db, processes: Processes, tmp_path: Path) -> None:
    lane = start_lane(processes, store, env=OFTEN)
    silent, short = add(db, "noop"), add(db, "talk", {"text": "short \u20ac"})
    fails = add(db, "fail")
    job = add(db, "chatter", {"path": str(tmp_path / "pid")})
    ended(db, short)
    eventually(lambda: tail_of(db, short) == "short \u20ac\nand on stderr\n", what="the log of a short job")
    pid_in(tmp_path / "pid")
    eventually(lambda: "said by a child" in tail_of(db, job), what="the log of a running job")
    assert status(db, job) == "running" and "said by its logger" in tail_of(db, job)
    (tmp_path / "pid.go").touch()
    ended(db, job)
    eventually(lambda: tail_of(db, job).endswith("the last line\n"), what="its end")
    found = db.one("select * from job_logs where job_id = {id}", id=job)
    assert found is not None and found["bytes"] > 2 * TAIL_BYTES >= len(found["tail"].encode()) > TAIL_BYTES - 4
    assert "\ufffd" in found["tail"] and "\0" not in found["tail"]
    ended(db, fails)
    eventually(lambda: "ValueError: told to" in tail_of(db, fails), what="the traceback")
    assert db.one("select 1 as one from job_logs where job_id = {id}", id=silent) is None
    stop(lane)


def test_last_words_of_a_killed_executor_and_of_a_stopped_lane_are_kept(
    store: Store, db: Db, processes: Processes, tmp_path: Path
) -> None:
    lane = start_lane(processes, store, "--grace", "0", queue="cpu", env={"FLIGHTDECK_LOG_TAIL_SECONDS": "600"})
    job = add_node(db, "chatter", {"path": str(tmp_path / "pid")})
    pid = pid_in(tmp_path / "pid")
    operate.kill_job(db, job)
    gone(pid)
    eventually(lambda: "said by a child" in tail_of(db, job), what="the log of the killed attempt")
    eventually(lambda: row(db, job, "workflow_node_jobs")["attempt"] == 2, what="the next attempt")
    eventually(lambda: len((tmp_path / "pid").read_text().split()) == 2)
    stop(lane)
    found = db.one("select * from job_logs where job_id = {id}", id=job)
    assert found is not None and (found["family"], found["attempt"]) == ("node", 2)


def test_a_job_that_holds_its_interpreter_can_be_read(store: Store, db: Db, processes: Processes) -> None:
    """Q6: nothing in such an executor can give its log a name; the lane reads what the slot writes."""
    lane = start_lane(processes, store, env=OFTEN)
    job = add(db, "speak_and_hold_gil", {"seconds": 600.0})
    eventually(lambda: tail_of(db, job) == "before\n", what="the log of a job that holds the GIL")
    assert status(db, job) == "running"
    lane.terminate()
    lane.terminate()
    operate.kill_job(db, job)
    assert lane.wait(60) == 0
