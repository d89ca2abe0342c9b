"""Connections, dialects, wakes and locks on both stores."""

from __future__ import annotations

import socket
import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from engine.errors import ConfigError, ReadOnlyStore, StoreUnavailable
from engine.store import Db, Json, Store, adopt
from engine.store.locks import Exclusive, Presence, new_incarnation, present
from tests.support import RefusingServer, eventually


def test_values_come_back_as_python_values(db: Db) -> None:
    moment = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)
    run_id = db.value(
        "insert into workflow_runs (graph, context, created_at) values ({graph}, {context}{json}, {at}) returning id",
        graph=Json({"nodes": [{"id": "a"}]}),
        context='{"n": 1.5}',
        at=moment,
    )
    row = db.one("select * from workflow_runs where id = {id}", id=run_id)
    assert row is not None
    assert row["graph"] == {"nodes": [{"id": "a"}]}
    assert row["context"] == {"n": 1.5}
    assert row["created_at"] == moment
    assert db.one("select {text[context]} as context_json from workflow_runs where id {any[ids]}", ids=[run_id])


def test_values_of_a_hot_statement_arrive_as_they_were_given(store: Store) -> None:
    """Arrays are written as text: quotes, backslashes, braces, NULL and nothing are values like any others."""
    texts = ["", "null", 'a"b', "back\\slash", "{x,y}", " ä ☃ ", "'; drop table boxes; --", None]
    with store.connect("test", claims=True) as db:
        for _ in range(2):
            row = db.hot("select {yes} as yes, {number} + 0 as number, {half} + 0.0 as half, {none} as none, {word} as word",
                         yes="t", number=7, half=0.5, none=None, word='it\'s "{quoted}"')[0]  # fmt: skip
            assert row == {"yes": "t", "number": 7, "half": 0.5, "none": None, "word": 'it\'s "{quoted}"'}
        db.run("create temporary table odd (word text, number bigint)")
        if store.kind == "postgresql":
            insert = "insert into odd select * from unnest({words}::text[], {numbers}::bigint[]) returning word, number"
            rows = db.hot(insert, words=texts, numbers=[*range(len(texts) - 1), None])
            assert [row["word"] for row in rows] == texts
            assert [row["number"] for row in rows] == [*range(len(texts) - 1), None]
            assert db.hot("select * from odd where number {any[ids]}", ids=[]) == []
            for nul in ("a\0b", ["a\0b"]):
                with pytest.raises(psycopg.DataError, match="NUL"):
                    db.hot("select {word}::text = any({words}::text[])", word="x", words=nul)
            with pytest.raises(psycopg.errors.UniqueViolation):
                for _ in range(2):
                    db.hot("insert into boxes (box) values ({box})", box="b1")
            assert db.hot("select box from boxes") == [{"box": "b1"}]  # an error leaves the connection as it was
            with pytest.raises(TypeError, match="complex"):
                db.hot("select {value}::text", value=1j)


def test_a_hot_statement_is_not_waited_for_beyond_its_deadline(pg_store: Store) -> None:
    with pg_store.connect("test", claims=True, timeout_s=0.2) as db:
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            db.hot("select pg_sleep({s})", s=5.0)
        assert db.value("select 1") == 1
        db.run("set statement_timeout = 0")
        db.raw.deadline_s = 0.2
        with pytest.raises(StoreUnavailable, match="no answer within"):
            db.hot("select pg_sleep({s})", s=5.0)
        assert db.closed


@pytest.mark.parametrize("claims", [True, False])
def test_no_statement_is_compiled_whatever_the_server_does(pg_store: Store, claims: bool) -> None:
    """Where the server has LLVM a look at the fleet took five seconds once the planner had guessed too much."""
    with pg_store.connect("owner") as db:
        db.run(f"alter database {db.value('select current_database()')} set jit = on")
    with pg_store.connect("test", claims=claims) as db:
        assert db.value("show jit") == "off"


def test_relative_times_use_the_database_clock(db: Db) -> None:
    row = db.one("select {after[s]} as later_at, {before[s]} as sooner_at, {now} as now_at", s=90.5)
    assert row is not None
    tolerance = timedelta(milliseconds=2)
    assert abs(row["later_at"] - row["now_at"] - timedelta(seconds=90.5)) < tolerance
    assert abs(row["now_at"] - row["sooner_at"] - timedelta(seconds=90.5)) < tolerance


def test_a_failed_transaction_leaves_nothing_and_a_savepoint_only_what_was_outside(db: Db) -> None:
    with pytest.raises(RuntimeError):
        with db.transaction():
            db.run("insert into boxes (box) values ('a')")
            raise RuntimeError
    with db.transaction():
        db.run("insert into boxes (box) values ('b')")
        with pytest.raises(RuntimeError):
            with db.transaction():
                db.run("insert into boxes (box) values ('c')")
                raise RuntimeError
    assert [row["box"] for row in db.all("select box from boxes")] == ["b"]


def test_a_read_only_connection_refuses_writes_with_one_clear_error(store: Store) -> None:
    with store.connect("test", read_only=True) as db:
        with pytest.raises(ReadOnlyStore, match="read-only"):
            db.run("insert into boxes (box) values ('a')")


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:x.db", "nonsense", "embedded:relative"])
def test_a_wrong_url_is_refused_with_one_line(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Store(url)
    assert "\n" not in str(caught.value)


def test_an_unreachable_server_is_one_clear_error_without_the_password() -> None:
    store = Store("postgresql://someone:s3cret@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable) as caught:
        store.connect("test")
    assert "s3cret" not in str(caught.value) + store.safe_url
    assert "\n" not in str(caught.value)


def test_copy_appends_rows(db: Db) -> None:
    assert db.copy("ingest_jobs", ("task_name", "args"), (("t", f'{{"i": {i}}}') for i in range(1000))) == 1000
    rows = db.all("select args from ingest_jobs order by id")
    assert [row["args"]["i"] for row in rows] == list(range(1000))


def test_an_insert_wakes_a_listener(store: Store) -> None:
    with store.wakes(("ingest_job_ready",), poll_s=60.0) as wakes, store.connect("test") as db:
        eventually(lambda: wakes.state.listening)
        while wakes.wait(0.1) is not None:
            pass
        db.run("insert into ingest_jobs (task_name) values ('t')")
        seen = wakes.wait(20.0)
        assert seen is not None
        if store.kind == "postgresql":
            assert [(wake.channel, wake.payload) for wake in seen] == [("ingest_job_ready", "default")]


def test_a_thousand_rows_in_one_statement_send_one_notification(pg_store: Store) -> None:
    """Q17: notifications are per statement and distinct queue, never per row.

    The server drops equal notifications of a transaction, so what a listener hears does not tell the two apart: the
    triggers themselves are looked at, too.
    """
    with pg_store.wakes(("ingest_job_ready",), poll_s=60.0) as wakes, pg_store.connect("test") as db:
        eventually(lambda: wakes.state.listening)
        while wakes.wait(0.1) is not None:
            pass
        db.copy("ingest_jobs", ("task_name", "queue"), (("t", "a" if i % 2 else "b") for i in range(1000)))
        db.run("insert into ingest_jobs (task_name, queue) values ('t', 'end')")
        heard: list[str] = []
        eventually(lambda: heard.extend(w.payload for w in wakes.wait(1.0) or []) or "end" in heard)
        assert sorted(heard) == ["a", "b", "end"]
        triggers = db.all(
            "select tgname, tgtype & 1 as per_row from pg_trigger where not tgisinternal and tgrelid in "
            "('workflow_node_jobs'::regclass, 'ingest_jobs'::regclass)"
        )
        assert triggers and not [row["tgname"] for row in triggers if row["per_row"]]


def test_listen_comes_back_after_its_session_was_killed(pg_store: Store) -> None:
    """Q13: the listener is rebuilt and hears again."""
    with pg_store.wakes(("ingest_job_ready",), poll_s=60.0) as wakes, pg_store.connect("test") as db:
        eventually(lambda: wakes.state.listening)
        first = wakes.state.since
        killed = db.all(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'flightdeck wakes' and datname = current_database()"
        )
        assert len(killed) == 1
        eventually(lambda: wakes.state.listening and wakes.state.since > first)
        while wakes.wait(0.1) is not None:
            pass
        db.run("insert into ingest_jobs (task_name) values ('t')")
        eventually(lambda: any(w.channel == "ingest_job_ready" for w in wakes.wait(1.0) or []))


def test_a_listener_that_cannot_connect_says_so_once_and_backs_off(caplog: pytest.LogCaptureFixture) -> None:
    """Q15: one line per change of state, ever longer pauses with jitter; Q13: its reader is told to look meanwhile."""
    with RefusingServer() as server, caplog.at_level("INFO", "engine.wakes"):
        with Store(server.url).wakes(("ingest_job_ready",), poll_s=60.0) as wakes:
            looks = 0

            def tried() -> bool:
                nonlocal looks
                looks += wakes.wait(0.05) is not None
                return len(server.tries) >= 7 and looks >= 3

            eventually(tried)
            assert not wakes.state.listening and wakes.state.error
        pauses = [after - before for before, after in pairwise(server.tries)]
        assert max(pauses[4:]) >= 0.4
        said = [record.getMessage() for record in caplog.records if record.name == "engine.wakes"]
        assert len(said) == 1 and said[0].startswith("not listening") and "s3cret" not in said[0]


def test_presence_is_seen_while_its_session_lives(store: Store) -> None:
    incarnation, other = new_incarnation(), new_incarnation()
    observer = store.connect("observer")
    db = store.connect("lane")
    mark = Presence(store, incarnation)
    assert present(store, observer, [incarnation]) == set()
    mark.hold(db)
    assert present(store, observer, [incarnation, other, "not an incarnation"]) == {incarnation}
    mark.release()
    db.close()
    eventually(lambda: not present(store, observer, [incarnation]))
    observer.close()


def test_an_exclusive_lock_has_one_holder_and_passes_on(store: Store) -> None:
    with store.connect("one") as one, store.connect("two") as two:
        first, second = Exclusive(store, "leader"), Exclusive(store, "leader")
        assert first.try_acquire(one) and first.held
        assert not second.try_acquire(two)
        assert Exclusive(store, "another").try_acquire(two)
        first.release()
        assert second.try_acquire(two)
        second.release()


def test_an_adopted_connection_commits_with_its_owner_and_not_before(store: Store, db: Db) -> None:
    if store.kind == "postgresql":
        conn: psycopg.Connection | sqlite3.Connection = psycopg.connect(store.url)
    else:
        assert store.path is not None
        conn = sqlite3.connect(store.path)
    for end, seen in (("rollback", 0), ("commit", 1)):
        ours = adopt(conn)
        with ours.transaction():
            ours.run("insert into boxes (box) values ('a')")
        assert db.value("select count(*) from boxes") == 0
        getattr(conn, end)()
        assert db.value("select count(*) from boxes") == seen
    conn.close()


def test_a_parameter_named_like_a_fragment_is_refused(db: Db) -> None:
    with pytest.raises(ValueError, match="text"):
        db.run("update boxes set description = {text}", text="a")


def test_the_poll_goes_on_while_the_listener_is_stuck_in_a_connect() -> None:
    """Q13: an address that accepts and never answers holds up LISTEN, not the poll behind it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = Store(f"postgresql://someone@127.0.0.1:{silent.getsockname()[1]}/none")
        with store.wakes(("ingest_job_ready",), poll_s=0.05) as wakes:
            for _ in range(10):
                assert wakes.wait(20.0) == []
            assert not wakes.state.listening
