"""The page of one job: its sections, jumps, the log that follows, the answer to a node that waits."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from engine.store import Db
from flightdeck.app import FlightDeckApp
from flightdeck.frame import render_frame
from flightdeck.model.job_detail import JobDetail, Share, read_detail
from flightdeck.orders import _function
from flightdeck.reader import Answer, Canned
from flightdeck.screens.job import JobScreen, typed_value
from flightdeck.widgets import job_sections as draw
from flightdeck.widgets.lines import UNICODE, plain
from tests.deck.fleet_data import HOSTILE, NOW, four_boxes
from tests.deck.jobs_data import ANSWERS, DETAIL, LIVE, ago, answers
from tests.deck.piloting import fly, ledger, seen

WIDTHS = (60, 80, 120, 210)


def detail(**over: Any) -> JobDetail:
    row = over.pop("row", {})
    found = read_detail(DETAIL | {"job": DETAIL["job"] | row} | over)
    assert found is not None
    return found


def text(lines: Any) -> str:
    return "\n".join(plain(line).rstrip() for line in lines)


def page(app: FlightDeckApp) -> JobScreen:
    assert isinstance(app.screen, JobScreen)
    return app.screen


# -- sections


def test_attempts_explain_their_exit_codes_and_show_the_evidence() -> None:
    found = detail()
    shown = text(draw.attempts(found.events, True, 120))
    assert "exit 76 stall: the node stopped beating and its GPU stood still" in shown
    assert "requeued: watchdog trip" in shown and "gpu on spark2" in shown and "after 10m11" in shown
    assert "evidence.gpu pct: 0, 0, 0" in shown and shown.count("attempt 1") == 1 and "older ones are left out" in shown
    assert "nothing yet" in text(draw.attempts((), False, 120))


@pytest.mark.parametrize(
    ("code", "reason", "lines"),
    [
        (137, "137: killed by SIGKILL", ["exit 137: killed by SIGKILL"]),
        (137, "137: oom", ["exit 137: killed by SIGKILL", "reason: oom"]),
        (137, "1370 MB too much", ["exit 137: killed by SIGKILL", "reason: 1370 MB too much"]),
        (None, "the lane was told to stop at once", ["reason: the lane was told to stop at once"]),
    ],
)
def test_an_exit_is_explained_once(code: int | None, reason: str, lines: list[str]) -> None:
    """The reason repeated it: ``reason: 137: killed by SIGKILL``."""
    row = {"at": ago(9), "type": "requeued", "cause": "drain", "attempt": 1, "exit_code": code}
    found = detail(events=[row | {"detail": {"reason": reason}}])
    _, head, *rest = text(draw.attempts(found.events, False, 120)).split("\n")
    assert "requeued: lane stopped it" in head and [line.strip() for line in rest] == lines


def test_the_share_of_the_hardware_or_why_there_is_none() -> None:
    """D5, D9: what is not offered is n/a, under a tenth of a second is none."""
    held = Share(0, 12_400.0, 88_000.0, 40.0, 86.0, 119.2, 1840.0, 180)
    unknown = Share(-1, None, None, None, None, None, None, 0)
    shown = text(draw.hardware((held, unknown), "", 120)).split("\n")
    assert shown[1].split() == ["gpu", "0", "12", "s", "88", "s", "0", "s", "86", "119", "1.84", "180"]
    assert shown[2].split() == ["processor", *["n/a"] * 6, "0"]
    assert text(draw.hardware((), "n/a: shorter than 10 s", 120)) == "  n/a: shorter than 10 s"


def test_the_run_is_indented_and_its_columns_stand_still() -> None:
    run = detail().run
    assert run is not None
    shown = text(draw.run_lines(run, "render", 120, NOW)).split("\n")
    assert shown[0].strip() == "storm_clip 31 running   2 completed, 1 running, 2 not yet   again of run 28"
    assert [len(line) - len(line.lstrip()) for line in shown[1:]] == [2, 4, 6, 8, 10]
    assert (
        len({line.index(state) for line, state in zip(shown[1:], ("comp", "comp", "runn", "not", "not"), strict=True)})
        == 1
    )
    assert shown[4].endswith("after render")


def test_facts_say_what_was_spent_and_who_holds_it() -> None:
    shown = text(draw.facts(detail(), 120, NOW))
    assert "2, 1 of 3 tries spent" in shown and "1 of 3 by watchdogs" in shown
    assert "spark/gpu/9f2c71aa, fence 7" in shown and "9m54 left" in shown and "spark, spark2" in shown
    over = detail(row={"status": "failed", "finished_at": ago(20), "retry_of": "7", "budget_s": 3600.0})
    shown = text(draw.facts(over, 120, NOW))
    assert "job 7" in shown and "5m42 of 1h00 at most" in shown and "lease" not in shown


def test_why_it_waits_and_how_many_go_before_it() -> None:
    found = detail(
        row={"status": "queued"}, waits=["no lane serves queue gpu of this project"], ahead={"n": 1000, "capped": True}
    )
    assert text(draw.waits(found, 100)).split("\n") == [
        "  - no lane serves queue gpu of this project",
        "  - 1,000+ jobs of its queue and model go before it",
    ]
    assert "- nothing of its queue and model goes before it" in text(
        draw.waits(detail(row={"status": "queued"}, ahead={"n": 0}), 100)
    )


def test_long_lines_are_wrapped_and_very_long_ones_cut() -> None:
    lines = [plain(line).rstrip() for line in draw.wrapped("abcdefghij" * 4, 23, "text", 2)]
    assert lines == ["  " + "abcdefghij" * 2] * 2
    assert len(draw.wrapped("x" * 5000, 80, "text", 2)) == draw.WRAPPED_MOST
    assert plain(draw.wrapped("x" * 5000, 80, "text", 2)[-1]).rstrip().endswith("~")
    assert {cell_len(plain(line)) for line in draw.wrapped("\u6f22\u5b57" * 40, 31, "text", 2)} == {31}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_texts_of_a_job_are_data(hostile: str) -> None:
    """D19, D20: inputs, errors, logs, evidence; every row has the width of the screen and no control byte."""
    found = detail(
        row={"error": f"{hostile}\n{hostile}", "name": hostile, "node_id": hostile, "only_boxes": [hostile]},
        input={"text": hostile * 3, "size": 9, "cut": True},
        events=[{"type": hostile, "attempt": 1, "detail": {hostile: {hostile: [hostile]}}, "box": hostile}],
        log={"text": hostile + "\n" + hostile, "size": 1, "attempt": 1, "updated_at": None, "cut": False},
        waits=[hostile],
    )
    assert found.run is not None
    for width in WIDTHS:
        lines = [
            *draw.head_lines(found, width, UNICODE, NOW), *draw.facts(found, width, NOW), *draw.waits(found, width),
            *draw.payload(found.input, "", width), *draw.error_lines(found.error, width),
            *draw.attempts(found.events, False, width), *draw.log_lines(found.log, width, NOW, False),
            *draw.run_lines(found.run, "render", width, NOW), *draw.asked(found, width, False),
        ]  # fmt: skip
        assert {cell_len(plain(line)) for line in lines} == {width}
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for line in lines for char in plain(line))


@pytest.mark.parametrize(
    "odd", [None, 7, {}, {"job": 3}, {"job": {}, "run": {"nodes": [3]}, "events": "x", "input": {}, "log": {}}]
)
def test_an_odd_answer_is_read_all_the_same(odd: object) -> None:
    found = read_detail(odd)
    assert (found is None) == (not isinstance(odd, dict) or not isinstance(odd.get("job"), dict))
    if found is not None:
        assert "None" not in text(draw.facts(found, 80, NOW))


def test_what_is_typed_is_json_or_a_text() -> None:
    assert [typed_value(typed) for typed in ("true", '{"a": 1}', "  yes, go ", "7")] == [True, {"a": 1}, "yes, go", 7]


# -- the page


def test_it_opens_from_the_list_jumps_and_follows_the_log() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "enter")
        shown = seen(app)
        assert "job 200  comfyui_video (render)" in shown and "88 s" in shown and "storm_clip 31 running" in shown
        await pilot.press("i")
        assert seen(app).split("\n")[3].startswith(" INPUT")
        await pilot.press("tab")
        assert seen(app).split("\n")[3].startswith(" OUTPUT")
        await pilot.press("l")
        assert "frame 61 of 100 done in 3.1 s" in seen(app)
        log = DETAIL["log"] | {"text": DETAIL["log"]["text"] + "".join(f"line {n}\n" for n in range(50))}
        page(app).take_job(Answer("job", {}, DETAIL | {"log": log}, "", 0.0))
        assert "line 49" in seen(app)  # it follows
        await pilot.press("k")
        log = log | {"text": log["text"] + "the last word\n"}
        page(app).take_job(Answer("job", {}, DETAIL | {"log": log}, "", 0.0))
        assert "the last word" not in seen(app)  # somebody reads further up
        await pilot.press("G")
        assert "the last word" in seen(app)
        await pilot.press("x")
        assert "Cancel job 200 comfyui_video (render) (gpu on spark, project" in seen(app)
        await pilot.press("b", "home")
        page(app).take_job(Answer("job", {}, None, "no answer within 4 s", 0.0))
        assert "no answer within 4 s" in seen(app) and "enqueued" in seen(app)
        await pilot.press("escape")
        assert app.screen_page() == "jobs"

    fly(four_boxes(), flight, reader=Canned(ANSWERS))


WAITS = DETAIL | {
    "job": DETAIL["job"] | LIVE[4], "asked": {"prompt": "good enough?", "schema": {"type": "boolean"}, "submitted": False},
}  # fmt: skip


def test_a_node_that_waits_for_a_person_is_answered() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.show_page("job", job_id="33")
        await pilot.press("home")
        assert "good enough?" in seen(app) and "boolean" in seen(app) and "enter: answer it" in seen(app)
        await pilot.press("enter", *"true", "enter")
        (call,) = ledger(app).calls()
        assert call == (
            "give_input",
            {"run_id": "32", "node_id": "approve", "value": True, "requested_by": app.operator.who},
        )
        page(app).take_job(Answer("job", {}, WAITS | {"asked": WAITS["asked"] | {"submitted": True}}, "", 0.0))
        await pilot.press("enter")
        assert app.screen_page() == "job" and "on its way" in seen(app)

    fly(four_boxes(), flight, reader=Canned(answers(("job", {"job_id": "33"}, WAITS))))


def test_read_only_answers_nothing_and_says_how() -> None:
    """D17"""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.show_page("job", job_id="33")
        await pilot.press("home", "enter")
        assert app.screen_page() == "job" and "engine.submit_input" in seen(app) and "enter: answer" not in seen(app)

    fly(four_boxes(), flight, reader=Canned(answers(("job", {"job_id": "33"}, WAITS))), read_only=True)


def test_a_job_that_is_not_there() -> None:
    known = answers(("job", {"job_id": "200"}, {"job": None}))
    shown = render_frame(four_boxes().first(), (80, 24), keys=["2", "enter"], answers=ANSWERS | known).text
    assert "there is no job 200" in shown


def test_an_answer_reaches_its_node(db: Db) -> None:
    """What the desk calls; the refusal comes back as an error in words."""
    from engine.errors import BadInput
    from tests.queue.conftest import add_node, add_run

    graph = {"nodes": [{"id": "ok", "input": {"prompt": "?", "schema": {"type": "boolean"}}}]}
    run = add_run(db, graph=graph)
    add_node(db, run, "ok", status="awaiting_input")
    give = _function("give_input")
    with pytest.raises(BadInput):
        give(db, run_id=str(run), node_id="ok", value="perhaps", requested_by="ops")
    done = give(db, run_id=str(run), node_id="ok", value=True, requested_by="ops")
    assert done.changed == 1 and "was given its input" in done.message
    assert db.value("select status from input_submissions") == "pending"
