"""What an operator can do, what it says, and what it leaves behind."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest

from engine import config
from engine.errors import BadInput, NotFound
from engine.queue import operate
from engine.queue.controls import all_orders as orders_of
from engine.queue.controls import order_for, pick, set_order
from engine.queue.finish import Outcome, finish
from engine.queue.workers import beat
from engine.store import Db, Store
from tests.queue.conftest import add_ingest, add_node, add_run, job, kinds, lane, take


def actions(db: Db) -> list[tuple[str, str | None]]:
    return [(row["action"], row["requested_by"]) for row in db.all("select * from control_events order by id")]


def desired(db: Db, box: str = "b1", queue: str = "gpu", project: str = "") -> str:
    order = order_for(db, box, queue, project)
    assert pick(orders_of(db), box, queue, project).desired == order.desired
    return order.desired


def test_without_an_order_a_lane_is_on(db: Db) -> None:
    assert desired(db) == "on" and order_for(db, "b1", "gpu", "").updated_at is None


def test_the_newest_matching_order_counts(db: Db) -> None:
    operate.park(db, box="b1", queue="gpu", requested_by="ann")
    assert desired(db) == "off" and desired(db, box="b2") == "on" and desired(db, queue="cpu") == "on"
    assert desired(db, project="p") == "on"
    operate.resume(db, box="*", queue="gpu")
    assert desired(db) == "on"
    operate.cordon(db, box="b1")
    assert desired(db) == desired(db, queue="cpu") == "off"
    operate.resume(db, box="b1", queue="cpu")
    assert desired(db, queue="cpu") == "on" and desired(db) == "off"
    assert actions(db) == [("park", "ann"), ("resume", None), ("cordon", None), ("resume", None)]


def test_uncordon_lets_earlier_orders_count_again(db: Db) -> None:
    worker = lane("gpu")
    beat(db, worker, state="running", slots=1, busy=0)
    operate.park(db, box="b1", queue="gpu", policy="drain", reason="noisy fan")
    assert operate.cordon(db, box="b1").changed == 1
    done = operate.uncordon(db, box="b1", requested_by="bo")
    assert done.changed == 1 and "still off" in done.message and "gpu" in done.message
    order = order_for(db, "b1", "gpu", "")
    assert (order.desired, order.policy, order.reason) == ("off", "drain", "noisy fan")
    assert desired(db, queue="cpu") == "on"
    assert operate.uncordon(db, box="b1").changed == 0


def test_an_order_past_its_time_is_as_if_absent(db: Db) -> None:
    operate.park(db, box="b1", queue="gpu")
    set_order(db, "b1", "*", "", desired="on", until=db.now() + timedelta(hours=1))
    assert desired(db) == "on"
    db.run("update worker_controls set until = {past} where queue = '*'", past=db.now() - timedelta(seconds=1))
    assert desired(db) == "off"


def test_parking_says_what_it_does_and_when_it_does_nothing(db: Db) -> None:
    assert operate.park(db, box="b1", queue="gpu").message.endswith("the order stands for when it does")
    beat(db, lane("gpu"), state="running", slots=2, busy=2)
    again = operate.park(db, box="b1", queue="gpu", requested_by="ann")
    assert again.changed == 0 and "already" in again.message
    hard = operate.park(db, box="*", queue="gpu")
    assert hard.changed == 1 and "1 lane, 2 running jobs back to the front" in hard.message
    drain = operate.park(db, box="b1", queue="gpu", policy="drain")
    assert drain.changed == 1 and "will finish first" in drain.message
    other = operate.park(db, box="b1", queue="gpu", project="p")
    assert other.changed == 1 and other.message.endswith("; lanes there are of project none (--project)")
    later = operate.park(db, box="b1", queue="gpu", policy="hard")
    assert later.changed == 1, "a hard order after a drain is another order"
    assert len(actions(db)) == 6


def test_bad_orders_are_refused(db: Db) -> None:
    with pytest.raises(BadInput, match="policy"):
        operate.park(db, box="b1", queue="gpu", policy="soft")
    with pytest.raises(BadInput, match="time zone"):
        operate.park(db, box="b1", queue="gpu", until=datetime(2030, 1, 1))
    with pytest.raises(BadInput, match="past"):
        operate.park(db, box="b1", queue="gpu", until=db.now() - timedelta(seconds=5))
    with pytest.raises(BadInput):
        operate.park(db, box="", queue="gpu")
    assert actions(db) == [] and desired(db) == "on"


def test_orders_written_within_one_tick_of_the_clock_keep_their_order(db: Db) -> None:
    for _ in range(20):
        operate.park(db, box="b1", queue="gpu")
        assert desired(db) == "off"
        operate.resume(db, box="*", queue="*")
        assert desired(db) == "on"


def test_a_plain_sql_write_is_an_order(db: Db) -> None:
    db.run("insert into worker_controls (box, queue, desired) values ('b1', 'gpu', 'off')")
    assert desired(db) == "off" and order_for(db, "b1", "gpu", "").policy == "hard"
    operate.resume(db, box="b1", queue="*")
    assert desired(db) == "on"


def test_orders_and_stops_wake_their_lane(pg_store: Store) -> None:
    with pg_store.connect("listener") as listener, pg_store.connect("ops") as db:
        listener.raw.execute("listen worker_control")
        operate.park(db, box="b1", queue="gpu")
        operate.cordon(db, box="b2")
        operate.uncordon(db, box="b2")
        add_ingest(db)
        take(db, lane(box="b3"))
        operate.cancel_job(db, db.value("select id from ingest_jobs"))
        operate.kill_job(db, db.value("select id from ingest_jobs"))
        seen = [note.payload for note in listener.raw.notifies(timeout=10, stop_after=5)]
    assert seen == ["b1:gpu", "b2:*", "b2:*", "b3:default", "b3:default"]


def test_run_next_goes_before_every_band_and_due_time(db: Db) -> None:
    """Scenario 9"""
    add_ingest(db, priority=1)
    wanted = add_ingest(db, priority=900, run_after=db.now() + timedelta(hours=1))
    done = operate.run_next(db, str(wanted), requested_by="ann")
    assert done.changed == 1 and "runs next" in done.message
    assert operate.run_next(db, wanted).changed == 0
    assert [one.id for one in take(db, lane())] == [wanted]
    assert actions(db) == [("run_next", "ann"), ("run_next", None)]


def test_run_next_on_a_running_job_says_so_and_does_nothing(db: Db) -> None:
    """Scenario 9"""
    job_id = add_ingest(db)
    worker = lane()
    (one,) = take(db, worker)
    before = job(db, job_id)
    done = operate.run_next(db, job_id)
    assert done.changed == 0 and "is running on b1 already" in done.message
    assert job(db, job_id) == before
    finish(db, worker, [Outcome(job_id, one.fencing_token, "completed", "{}")])
    assert "is completed" in operate.run_next(db, job_id).message
    with pytest.raises(NotFound):
        operate.run_next(db, 10**14)
    with pytest.raises(BadInput):
        operate.run_next(db, "7; drop table ingest_jobs")


def test_run_next_wakes_the_lanes_of_its_queue(pg_store: Store) -> None:
    with pg_store.connect("listener") as listener, pg_store.connect("ops") as db:
        job_id = add_ingest(db, queue="other")
        listener.raw.execute("listen ingest_job_ready")
        operate.run_next(db, job_id)
        assert [note.payload for note in listener.raw.notifies(timeout=10, stop_after=1)] == ["other"]


def test_cancel_of_a_queued_job_is_at_once_and_of_a_running_one_a_request(db: Db) -> None:
    queued = add_ingest(db, priority=500)
    running = add_ingest(db)
    take(db, lane())
    assert operate.cancel_job(db, queued, requested_by="ann").changed == 1
    row = job(db, queued)
    assert row["status"] == "cancelled" and row["finished_at"] is not None and "ann" in row["error"]
    assert kinds(db, queued) == [("cancelled", None)]
    done = operate.cancel_job(db, running)
    assert done.changed == 1 and "asked to stop" in done.message
    assert job(db, running)["status"] == "running" and job(db, running)["cancel_requested"]
    assert operate.cancel_job(db, running).changed == 0
    assert operate.cancel_job(db, queued).changed == 0
    assert take(db, lane()) == []


def test_a_cancelled_node_tells_its_run(db: Db) -> None:
    run = add_run(db)
    node = add_node(db, run, "a")
    operate.cancel_job(db, node)
    (event,) = db.all("select * from workflow_dispatch_events")
    assert (event["run_id"], event["node_id"], event["kind"]) == (run, "a", "failed")


def test_kill_names_the_box_or_says_why_not(db: Db) -> None:
    job_id = add_ingest(db)
    assert operate.kill_job(db, job_id).changed == 0
    take(db, lane())
    done = operate.kill_job(db, job_id, requested_by="ann")
    assert done.changed == 1 and "b1" in done.message
    assert job(db, job_id)["kill_requested"]
    assert operate.kill_job(db, job_id).changed == 0


def test_a_retry_is_a_new_job(db: Db) -> None:
    job_id = add_ingest(db, args={"x": 1}, priority=3)
    assert operate.retry_job(db, job_id).changed == 0
    operate.cancel_job(db, job_id)
    done = operate.retry_job(db, job_id, requested_by="ann")
    assert done.id is not None
    new = job(db, int(done.id))
    assert (new["status"], new["retry_of"], new["args"], new["priority"]) == ("queued", job_id, {"x": 1}, 3)
    assert job(db, job_id)["status"] == "cancelled"
    node = add_node(db, add_run(db), "a")
    assert "retry the run" in operate.retry_job(db, node).message


def test_ten_who_retry_one_job_at_once_make_one_job(store: Store, db: Db) -> None:
    old = add_ingest(db)
    operate.cancel_job(db, old)
    begin = threading.Barrier(10)
    answers: list[operate.Done] = []

    def retry() -> None:
        with store.connect("someone") as mine:
            begin.wait(20)
            answers.append(operate.retry_job(mine, old))

    threads = [threading.Thread(target=retry) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    made = [answer.id for answer in answers if answer.id is not None]
    assert len(answers) == 10 and len(made) == 1
    assert db.value("select count(*) from ingest_jobs where retry_of = {old}", old=old) == 1
    refused = [answer for answer in answers if answer.id is None]
    assert all(answer.message.endswith(f"is being retried already, as job {made[0]}") for answer in refused)


@pytest.mark.parametrize("status", ["running", "queued later"])
def test_a_job_whose_retry_goes_on_is_not_retried_again(db: Db, status: str) -> None:
    old = add_ingest(db)
    operate.cancel_job(db, old)
    new = int(operate.retry_job(db, old).id or 0)
    if status == "running":
        take(db, lane())
    else:
        db.run("update ingest_jobs set run_after = {after[hour]} where id = {id}", id=new, hour=3600.0)
    assert operate.retry_job(db, old).changed == 0
    db.run("update ingest_jobs set status = 'failed', finished_at = {now} where id = {id}", id=new)
    assert operate.retry_job(db, old).changed == 1


def test_a_retry_into_a_full_queue_is_refused(db: Db) -> None:
    config.configure(backlog_limit=2)
    old = add_ingest(db)
    operate.cancel_job(db, old)
    waiting = [add_ingest(db) for _ in range(2)]
    done = operate.retry_job(db, old)
    assert done.changed == 0 and "queue default is full" in done.message
    operate.cancel_job(db, waiting[0])
    assert operate.retry_job(db, old).changed == 1


def test_cancel_of_a_run(db: Db) -> None:
    run = add_run(db)
    running = add_node(db, run, "a")
    take(db, lane("cpu"))
    waiting = add_node(db, run, "b")
    done = operate.cancel_run(db, str(run), requested_by="ann")
    assert done.changed == 1 and "1 running asked to stop" in done.message
    assert job(db, waiting)["status"] == "cancelled" and job(db, running)["cancel_requested"]
    again = operate.cancel_run(db, run)
    assert again.changed == 0 and "cancelled already" in again.message
    with pytest.raises(NotFound):
        operate.cancel_run(db, 10**14)
    assert actions(db)[-2:] == [("cancel_run", "ann"), ("cancel_run", None)]


def test_a_refused_operation_leaves_nothing_behind(db: Db) -> None:
    with pytest.raises(NotFound):
        operate.cancel_job(db, 10**14)
    assert actions(db) == []
