"""What ``--on-event`` runs: one message at a time, never too many, never for too long."""

from __future__ import annotations

import json
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine.errors import BadInput
from engine.orchestrator.notify import Bucket, Courier, Pending, Told, message, parse_command
from tests.support import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def courier(code: str, clock: Clock | None = None, timeout_s: float = 30.0, burst: int = 3) -> Courier:
    return Courier(("sh", "-c", code), timeout_s, burst, 60.0, clock or Clock())


def pending(count: int, kind: str = "run_failed", first: int = 1) -> list[Pending]:
    return [Pending(number, kind) for number in range(first, first + count)]


def result(one: Courier) -> Told | None:
    assert one._thread is not None
    one._thread.join(30.0)
    return one.collect()


def test_a_command_is_split_as_a_shell_would_but_no_shell_runs_it() -> None:
    assert parse_command(None) is None
    assert parse_command(f"{sys.executable} -c 'print(1); exit' $HOME") == (
        sys.executable, "-c", "print(1); exit", "$HOME",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"), [("", "empty"), ("mail 'x", "quotation"), ("/no/such/program x", "/no/such/program")]
)
def test_a_command_that_cannot_run_is_refused_in_one_line(text: str, word: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_command(text)
    assert word in str(refused.value) and "--on-event" in str(refused.value) and "\n" not in str(refused.value)


def test_a_bucket_gives_its_burst_and_then_one_at_a_time() -> None:
    clock = Clock()
    bucket = Bucket(2, 60.0, clock)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 59.0
    assert not bucket.take()
    clock.now += 1.0
    assert bucket.take() and not bucket.take()
    clock.now += 1e6
    assert bucket.left() == 2


def test_a_burst_is_told_one_by_one_and_what_is_left_together() -> None:
    """A hundred failed runs are three messages; the third says how many more. The next comes a minute later."""
    clock = Clock()
    one = courier("", clock)
    waiting = pending(100)
    sizes = []
    while picked := one.pick(waiting):
        sizes.append(len(picked))
        waiting = [row for row in waiting if row not in picked]
    assert sizes == [1, 1, 98]
    waiting = pending(4, first=200)
    assert one.pick(waiting) == ()
    assert one.pick([*waiting, Pending(300, "box_dead")]) == (Pending(300, "box_dead"),), "each kind has its own bucket"
    clock.now += 60.0
    assert one.pick(waiting) == tuple(waiting)


def test_a_message_names_the_first_and_counts_the_others() -> None:
    at = datetime(2026, 3, 4, tzinfo=UTC)
    rows = [
        {"id": n, "at": at, "box": "b", "queue": None, "project": "",
         "detail": {"kind": "run_failed", "text": f"run {n} failed", "run_id": str(n)}}
        for n in (7, 8, 9)
    ]  # fmt: skip
    found = message(rows, 5)
    assert found["id"] == "7" and found["kind"] == "run_failed" and found["detail"] == {"run_id": "7"}
    assert found["text"] == "run 7 failed (and 7 more)" and found["more"] == 7
    assert found["others"] == ["run 8 failed", "run 9 failed"]
    assert message(rows[:1], 0)["text"] == "run 7 failed"


def test_the_command_reads_one_json_object(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = courier(f"cat > '{out}'")
    one.send(pending(1), {"text": 'a "b"\n\x1b', "more": 0})
    assert one.busy and one.pick(pending(1, "box_dead")) == (), "one after the other"
    assert result(one) == Told((1,), "run_failed", None)
    assert json.loads(out.read_text()) == {"text": 'a "b"\n\x1b', "more": 0}
    assert one.collect() is None and one.error is None


def test_a_command_that_fails_is_tried_three_times_and_then_given_up() -> None:
    clock = Clock()
    one = courier("echo no route; exit 3", clock)
    rows = pending(1)
    for pause in (5.0, 30.0):
        assert one.pick(rows) == tuple(rows)
        one.send(rows, {})
        assert result(one) is None
        assert one.error is not None and "ended with 3: no route" in one.error
        assert one.pick(rows) == ()
        clock.now += pause
    assert one.pick(rows) == tuple(rows)
    one.send(rows, {})
    told = result(one)
    assert told is not None and told.ids == (1,) and "ended with 3" in str(told.error)


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    one = courier(f"sleep 600 & echo $! > '{child}'; wait", timeout_s=600.0)
    one.send(pending(1), {})
    pid = int(eventually(lambda: child.exists() and child.read_text().strip()))
    assert one.close(0.0) is None, "killed is not taken"
    assert one.error is not None and "ended with -9" in one.error
    eventually(lambda: not running(pid), what="the grandchild to be gone")


def test_a_command_over_its_deadline_is_killed() -> None:
    one = courier("sleep 600", timeout_s=0.2)
    one.send(pending(1), {})
    assert result(one) is None
    assert one.error is not None and "longer than 0.2 s" in one.error


def test_a_command_that_prints_for_ever_fills_no_disk() -> None:
    """What it printed went to a file until its deadline: gigabytes in ten seconds."""
    one = courier("exec yes", timeout_s=600.0)
    one.send(pending(1), {})
    process = eventually(lambda: one._process)
    assert stat.S_ISFIFO(os.stat(f"/proc/{process.pid}/fd/1").st_mode)
    assert one.close(0.0) is None and one.error is not None and "ended with -9" in one.error


def test_the_last_words_of_a_command_that_prints_much_are_told() -> None:
    one = courier("head -c 300000 /dev/zero | tr '\\0' 'x'; echo; echo last words; exit 4")
    one.send(pending(1), {})
    assert result(one) is None
    assert one.error is not None and one.error.endswith("ended with 4: last words")


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and os.path.exists(f"/proc/{pid}")
