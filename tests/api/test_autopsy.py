"""flightdeck autopsy: a page about the last hour of a box, from what the recorder left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from engine.commands.options import run_app
from engine.store import Db, Json, Store
from engine.telemetry import slow, writer
from engine.telemetry.evidence import climbs, evidence, holes, reasons
from engine.telemetry.rollup import by_minute, roll_up
from engine.telemetry.sample import BoxFacts, BoxSample, GpuFacts, GpuSample
from flightdeck.autopsy import parse_at
from flightdeck.autopsy_page import page
from flightdeck.cli import cli

FACTS = BoxFacts(
    "spark", "m-1", "the lab's", "Grace", 20, 124_000.0, (GpuFacts(0, "GPU-1", "NVIDIA GB10", "nvidia", unified=True),),
    "580.95", "6.11",
)  # fmt: skip
STUCK = slow.Slow(0, "GPU-1", datetime(2026, 11, 29, 12, 0, tzinfo=UTC), 612.0, 2418.0)


def story(end: datetime, seconds: int = 2400, step: int = 10, source: str = "counter") -> list[BoxSample]:
    """A box that gets hot in its last five minutes, is held back in the last four, and falls silent."""
    found = []
    for back in range(seconds, -1, -step):
        hot = max(0.0, 1.0 - back / 300)
        held = back < 240
        gpu = GpuSample(
            0, "GPU-1", util_pct=96.0, temp_c=70.0 + 27 * hot, power_w=60.0, sm_mhz=900.0 if held else 2400.0,
            mem_used_mb=40_000.0, throttle_mask=0x20 if held else 0, throttle_source=source,
            sw_thermal_ms=step * 1000.0 if held else 0.0, sw_power_ms=0.0,
        )  # fmt: skip
        found.append(
            BoxSample(
                "spark", end - timedelta(seconds=back), cpu_pct=80.0, cpu_temp_c=65.0 + 25 * hot, cpu_mhz=3000.0, load1=9.0,
                mem_used_mb=30_000.0 + 60_000 * hot, mem_total_mb=124_000.0, swap_used_mb=0.0, gpus=(gpu,),
            )
        )  # fmt: skip
    return found


def put(db: Db, samples: list[BoxSample], *, tiers: str = "both") -> None:
    minutes = [roll_up(some) for some in by_minute(samples).values()]
    rows = (minutes if tiers != "detail" else []) + (samples if tiers != "minute" else [])
    me = writer.Recorder("spark", "00000000000000aa", 4711, "1.0")
    writer.write_facts(db, FACTS)
    writer.write(db, me, rows, payload=None, last_error=None)


def put_job(db: Db, start: datetime, end: datetime, outcome: str, cause: str | None, name: str = "train") -> None:
    job = db.value(
        "insert into ingest_jobs (task_name, project, status) values ({name}, 'shop', 'queued') returning id", name=name
    )
    db.run(
        "insert into job_events (family, job_id, event_type, cause, box, queue, project, elapsed_s, exit_code, created_at) "
        "values ('ingest', {job}, {outcome}, {cause}, 'spark', 'training', 'shop', {elapsed}, {code}, {end})",
        job=job, outcome=outcome, cause=cause, elapsed=(end - start).total_seconds(), end=end,
        code=77 if cause else None,
    )  # fmt: skip


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process lives in New York."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def autopsy(
    capsys: pytest.CaptureFixture[str], store: Store, *args: str, monkeypatch: pytest.MonkeyPatch | None = None
) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_app(cli, "flightdeck", ["autopsy", *args, "--db", store.url], store_code=2)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_power_cut_leaves_the_last_row_as_evidence(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with store.connect("test") as db:
        end = db.now().replace(microsecond=0) - timedelta(hours=2)
        samples = story(end)
        samples[-1] = slow.marked(samples[-1], [STUCK])
        put(db, samples)
        put_job(db, end - timedelta(seconds=700), end + timedelta(seconds=31), "requeued", "lane_lost")
        put_job(db, end - timedelta(seconds=900), end - timedelta(seconds=60), "completed", None, "before")
        put_job(db, end + timedelta(seconds=60), end + timedelta(seconds=90), "completed", None, "after")
        db.run(
            "insert into worker_heartbeats (box, queue, state, last_exit_code, last_exit_reason, last_seen) "
            "values ('spark', 'gpu', 'running', 76, 'no beat for 120 s', {end})",
            end=end,
        )
        db.run(
            "insert into control_events (at, box, action, requested_by, detail) "
            "values ({at}, 'spark', 'alert', 'recorder@spark', {detail})",
            at=end - timedelta(seconds=100),
            detail=Json({"text": "spark: GPU 0 slow without a reason"}),
        )
    code, out, _ = autopsy(capsys, store, "spark")
    assert code == 0 and out.isascii() and max(map(len, out.splitlines())) <= 100
    for words in (
        "No sample for 2h0",
        "did not sign off: the power went",
        "Held back at the end: GPU 0 T thermal",
        "GPU 0 was slow without a reason: 612 MHz, usually 2418.",
        "GPU 0 temperature 70 C -> 97 C",
        "GPU 0 clock 2400 MHz -> 900 MHz",
        "memory 29.3 G -> 87.9 G",
        "GPU 0 ok: 96 % 97 C 60 W 900 MHz memory 39.1 G, unified held back by thermal",
        "on, to the end",
        "stalled (76): no beat for 120 s",
        "spark: GPU 0 slow without a reason by recorder@spark",
    ):
        assert words in " ".join(out.split()), f"{words!r} in\n{out}"
    (aboard,) = [line for line in out.splitlines() if line.startswith("  job ")]
    assert "train" in aboard and "ran 11m40" in aboard and "requeued (lane lost)" in aboard


def test_a_box_that_died_days_ago_is_read_from_its_minutes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with store.connect("test") as db:
        end = db.now().replace(second=30, microsecond=0) - timedelta(days=4)
        put(db, story(end), tiers="minute")
        put(db, [BoxSample("spark", db.now() - timedelta(hours=1))])
    code, out, _ = autopsy(capsys, store, "spark", "--at", (end + timedelta(minutes=3)).isoformat())
    assert code == 0 and "details are gone" in out and "GPU 0 temperature" in out and "T thermal" in out
    assert "-> 97 C" in out, "the spike of a minute stays"
    assert f"until {(datetime.now().astimezone() - timedelta(hours=1)).strftime('%m-%d')}" in out


def test_times_are_the_reader_s_and_a_naive_one_is_said_to_be_taken_so(
    store: Store, capsys: pytest.CaptureFixture[str], zone: None
) -> None:
    """D12: nothing is eight hours off."""
    with store.connect("test") as db:
        put(db, story(db.now() - timedelta(minutes=1), 600))
    noon = datetime(2026, 7, 1, 16, 0, tzinfo=UTC)
    assert parse_at("2026-07-01 12:00", noon) == (noon, True) == parse_at("12:00", noon)
    assert parse_at("2026-07-01T18:00+02:00", noon) == (noon, False)
    assert parse_at("12:01:30", noon) == (noon - timedelta(hours=24) + timedelta(seconds=90), True)
    assert parse_at("90m ago", noon) == (noon - timedelta(minutes=90), False) == parse_at("1.5h", noon)
    now = datetime.now().astimezone()
    _, out, _ = autopsy(capsys, store, "spark", "--at", now.strftime("%Y-%m-%dT%H:%M:%S"))
    assert f"{now.strftime('%H:%M')}" in out.splitlines()[0] and f"{now.tzname()} (UTC-0" in out
    assert "--at came without a zone and was taken as that" in out
    _, out, _ = autopsy(capsys, store, "spark", "--at", datetime.now(UTC).isoformat())
    assert "taken as" not in out


def test_wrong_use_is_one_line(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = autopsy(capsys, store, "spark")
    assert (code, out, err) == (2, "", "flightdeck: no box 'spark'; no box is known yet\n")
    with store.connect("test") as db:
        writer.write_facts(db, FACTS)
        db.run("insert into worker_heartbeats (box, queue) values ('lane only', 'cpu')")
    code, _, err = autopsy(capsys, store, "sprak")
    assert code == 2 and err == "flightdeck: no box 'sprak'; known: lane only, spark\n"
    code, _, err = autopsy(capsys, store, "spark")
    assert code == 1 and "nothing was recorded up to" in err and err.count("\n") == 1
    for wrong in ("noon", "25:00", "2026-13-01", "2026-11-29T12:00\x1b[2J", "99999999999d and more"):
        code, out, err = autopsy(capsys, store, "spark", "--at", wrong)
        assert code == 2 and "--at:" in err and not out and "\x1b" not in err and err.count("\n") == 1


def test_as_data(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with store.connect("test") as db:
        end = db.now() - timedelta(hours=1)
        put(db, story(end, 600))
    code, out, _ = autopsy(capsys, store, "spark", "--json")
    data = json.loads(out)
    assert code == 0 and data["box"] == "spark" and data["silent_s"] == pytest.approx(3600, abs=600)
    assert datetime.fromisoformat(data["last"]["at"]).tzinfo is not None and data["last"]["gpus"][0]["temp_c"] == 97.0
    assert [reason["letter"] for reason in data["reasons"]] == ["T"]


def test_every_metric_absent_at_once(db: Db) -> None:
    """D5: all n/a, nothing is 0."""
    at = db.now()
    put(db, [BoxSample("spark", at - timedelta(seconds=2 * n), gpus=(GpuSample(0, state="error"),)) for n in range(30)])
    lines = page(evidence(db, "spark"), 80)
    text = "\n".join(lines)
    assert "CPU n/a n/a n/a  load n/a  memory n/a of n/a G" in text
    assert "n/a: nothing on this box tells" in text and "Whether anything held it back is not known." in text
    assert "  GPU 0 error: n/a n/a  n/a n/a  memory n/a of n/a G  reasons n/a: not told" in lines


def test_names_do_nothing_to_the_terminal_and_fit(db: Db) -> None:
    """D19, D20: markup, escapes and wide names, in every part that a row can fill."""
    evil = "\x1b]52;c;x\x07[/]\u202e" + "長" * 300
    at = db.now()
    put(db, story(at - timedelta(seconds=5), 300))
    put_job(db, at - timedelta(seconds=60), at, "completed", None, evil)
    db.run(
        "insert into worker_heartbeats (box, queue, project, last_exit_code, last_exit_reason) values ('spark', {q}, {q}, 1, {q})",
        q=evil,
    )
    db.run(
        "insert into control_events (box, action, requested_by, detail) values ('spark', {e}, {e}, {d})",
        e=evil,
        d=Json({"reason": evil}),
    )
    db.run("update boxes set description = {e}, cpu_model = {e}", e=evil)
    for width in (60, 80, 140):
        lines = page(evidence(db, "spark"), width)
        assert all(cell_len(line) <= width for line in lines)
        assert not any(char in "".join(lines) for char in "\x1b\x07\u202e") and "[/]" in "".join(lines)


# What the samples say.

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_reasons_seconds_are_those_of_the_story() -> None:
    """D9: within 1 %; and the times on are when it came and went."""
    (reason,) = reasons(story(NOON))
    assert reason.seconds == pytest.approx(240, rel=0.01) and reason.at_the_end and not reason.sampled
    assert reason.times[0][1] == NOON and abs(reason.times[0][0] - (NOON - timedelta(seconds=240))) <= timedelta(
        seconds=10
    )
    rolled = [roll_up(some) for some in by_minute(story(NOON, source="mask")).values()]
    (reason,) = reasons(rolled)
    assert reason.seconds == pytest.approx(240, rel=0.01) and reason.sampled


def test_an_umbrella_bit_is_no_further_reason() -> None:
    gpu = GpuSample(0, throttle_mask=0x48)
    assert [one.name for one in reasons([BoxSample("b", NOON, gpus=(gpu,))])] == ["hw thermal"]
    gpu = GpuSample(0, throttle_mask=0x08)
    assert [one.name for one in reasons([BoxSample("b", NOON, gpus=(gpu,))])] == ["hw slowdown"]


def test_a_clock_that_falls_with_its_load_is_no_news() -> None:
    """D29: under load only."""

    def fallen(samples: list[BoxSample]) -> list[str]:
        return [climb.what for climb in climbs(samples) if climb.what == "GPU 0 clock"]

    samples = story(NOON)
    assert fallen(samples)
    idle = [replace(s, gpus=(replace(s.gpus[0], util_pct=3.0),)) if s.gpus[0].sm_mhz == 900.0 else s for s in samples]
    assert not fallen(idle)


def test_a_hole_between_samples_is_told() -> None:
    def at(*seconds: float, tier: str = "detail") -> list[BoxSample]:
        return [BoxSample("b", NOON + timedelta(seconds=s), tier) for s in seconds]

    def seen(samples: list[BoxSample]) -> list[tuple[float, float]]:
        return [((a - NOON).total_seconds(), (b - NOON).total_seconds()) for a, b in holes(samples)]

    assert seen(at(0, 2, 4, 64, 66)) == [(4, 64)]
    assert seen(at(0, 60, 120, 300, tier="minute")) == [(180, 300)] and seen(at(0, 60, tier="minute")) == []
    assert seen(at(0, 60, tier="minute") + at(121, 123)) == []
