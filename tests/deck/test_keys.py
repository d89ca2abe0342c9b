"""What keys do: every one in the table works, asks where it must, and does not exist where it may not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from flightdeck import actions
from flightdeck.app import FlightDeckApp
from flightdeck.looking import Looker
from flightdeck.navigate import settle
from flightdeck.operating import Operator
from flightdeck.screens.commands import CommandsScreen
from flightdeck.screens.dialog import ConfirmScreen, PromptScreen
from flightdeck.screens.fleet import BoxPane, FleetScreen
from flightdeck.widgets.lines import LineView
from flightdeck.widgets.scene import Cursor
from tests.deck.fleet_data import HOSTILE, MONO, four_boxes, hostile_fleet, lane, three_boxes, twelve_boxes, update
from tests.deck.piloting import StandingClock, carried_out, fly, ledger, seen


def test_no_key_is_dead() -> None:
    """Each action has somebody who does it; no key means two things."""
    keys = [key for action in actions.ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))
    for action in actions.ACTIONS:
        home = Operator if action.writes else Looker
        name = "take_back" if action.id == "undo" else action.id if action.writes else action.handler
        assert callable(getattr(home, name)), action.id


def test_every_key_can_be_pressed_anywhere() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for action in actions.ACTIONS:
            if action.id == "quit":
                continue
            for key in action.keys:
                await pilot.press(key)
                if app.screen is not app.fleet_screen():
                    await pilot.press("escape")
                assert app.screen is app.fleet_screen(), action.id
        assert app.is_running

    fly(four_boxes(), flight)


@pytest.mark.parametrize("size", [(210, 50), (120, 40), (80, 24)])
def test_arrows_and_hjkl_reach_every_lane_and_job(size: tuple[int, int]) -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        visited = set()
        for key in [
            *["j"] * 8,
            "l",
            *["down"] * 8,
            "right",
            *["j"] * 8,
            "l",
            *["j"] * 8,
            *["k", "up"] * 8,
            "h",
            *["j"] * 8,
        ]:
            cursor = app.scene.cursor
            visited.add((cursor.box, "" if cursor.job else cursor.lane, cursor.job))
            await pilot.press(key)
        lanes = {(box.raw, row.raw_queue, "") for box in app.boxes() for row in app.scene.lanes(box)}
        jobs = {(box.raw, "", job.id) for box in app.boxes() for job in box.jobs}
        assert lanes | jobs <= visited

    fleet = four_boxes()
    del fleet.boxes[0][0]["jobs"][2:]
    fly(fleet, flight, size=size)


def test_when_a_job_ends_the_cursor_falls_to_its_own_lane() -> None:
    """Not to the first lane of the box: the next p would park what nobody chose."""
    fleet = three_boxes()
    jobs = fleet.boxes[1][0]["jobs"]
    assert jobs[0]["queue"] == "gpu"

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("l", "j", "j")
        assert app.scene.cursor.job == jobs[0]["id"]
        jobs.clear()
        app.take_in(replace(fleet.tick(2), view=fleet.view()))
        app.flush()
        await pilot.pause()
        assert settle(app.scene, app.boxes(), app.scene.cursor) == Cursor("spark", "gpu")

    fly(fleet, flight)


def test_tab_cycles_the_lanes_of_a_box() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        order = []
        for _ in range(3):
            order.append(app.scene.cursor.lane)
            await pilot.press("tab")
        assert order == ["cpu", "gpu", "cpu"]
        await pilot.press("shift+tab")
        assert app.scene.cursor.box == "beelink"

    fly(three_boxes(), flight)


def test_parking_an_idle_lane_is_instant() -> None:
    """As a drain: a job that was claimed since the deck looked last was not asked about, so it is not killed."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("tab", "space")
        assert isinstance(app.screen, FleetScreen)
        assert ledger(app).calls() == [
            (
                "park",
                {
                    "box": "beelink",
                    "queue": "gpu",
                    "project": "lm_content",
                    "policy": "drain",
                    "requested_by": app.operator.who,
                },
            )
        ]

    fly(three_boxes(), flight)


def test_resuming_is_instant() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("l", "l", "space")
        assert app.scene.cursor.box == "spark2"
        assert [name for name, _ in ledger(app).calls()] == ["resume"]

    fly(three_boxes(), flight)


def test_one_key_does_not_interrupt_work() -> None:
    """D16: it asks once, names jobs and scope, and the focus is on going back."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("p")
        dialog = app.screen
        assert isinstance(dialog, ConfirmScreen)
        text = seen(app)
        assert "Park cpu on beelink, project lm_content?" in text
        assert "24 jobs run there:" in text
        assert "compute_storm_grids" in text
        assert "and 16 more" in text
        assert dialog.choices[dialog.index].label == "back"
        await pilot.press("enter")
        assert isinstance(app.screen, FleetScreen)
        assert not ledger(app).orders

    fly(three_boxes(), flight)


@pytest.mark.parametrize(("keys", "policy"), [(("d",), "drain"), (("h",), "hard"), (("left", "enter"), "hard"), (("left", "left", "enter"), "drain"), (("escape",), None)])  # fmt: skip
def test_the_question_offers_drain_hard_and_back(keys: tuple[str, ...], policy: str | None) -> None:
    """D16."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("space", *keys)
        assert isinstance(app.screen, FleetScreen)
        assert [arguments["policy"] for _, arguments in ledger(app).calls()] == ([policy] if policy else [])

    fly(three_boxes(), flight)


def test_in_all_a_row_stands_for_every_project_and_says_so() -> None:
    """SPEC 11: scope of a toggle in ``all``; in a project's tab that lane alone."""
    fleet = three_boxes()
    fleet.boxes[2][0]["lanes"][2]["busy"] = 1

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.point_at(Cursor("spark2", "gpu"))
        await pilot.press("space")
        assert "gpu on spark2, all 2 projects: ai_leads, lm_content" in seen(app)
        await pilot.press("d")
        assert [arguments["project"] for _, arguments in ledger(app).calls()] == ["ai_leads", "lm_content"]
        ledger(app).orders.clear()
        app.show_project("ai_leads")
        app.point_at(Cursor("spark2", "gpu"))
        await pilot.press("space")
        assert [arguments["project"] for _, arguments in ledger(app).calls()] == ["ai_leads"]

    fly(fleet, flight)


def test_whole_queue_names_its_scope_and_covers_every_box() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("tab", "P")
        text = seen(app)
        assert "Park gpu on every box, all 2 projects: ai_leads, lm_content?" in text
        assert "comfyui_video" in text
        await pilot.press("h")
        assert [(name, a["box"], a["project"]) for name, a in ledger(app).calls()] == [
            ("park", "*", "ai_leads"), ("park", "*", "lm_content"),
        ]  # fmt: skip
        carried_out(app)
        assert {(c.name, c.arguments["box"], c.arguments["project"]) for c in app.operator.undo[-1].undo} == {
            ("resume", "*", "ai_leads"), ("resume", "*", "lm_content"), ("park", "spark", "lm_content"),
        }  # fmt: skip

    fly(three_boxes(), flight)


def test_cordon_and_back() -> None:
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("l", "l", "B")
        assert [(name, a["project"]) for name, a in ledger(app).calls()] == [
            ("cordon", "ai_leads"),
            ("cordon", "lm_content"),
        ]
        for row in fleet.boxes[2][0]["lanes"]:
            row.update(cordoned=True, desired="off", state="parked")
        app.take_in(update(view=fleet.view()))
        app.flush()
        await pilot.press("B")
        assert [name for name, _ in ledger(app).calls()][2:] == ["uncordon", "uncordon"]

    fly(fleet, flight)


def test_undo_takes_back_the_last_order_only_when_it_was_carried_out() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("u")
        assert not ledger(app).orders
        await pilot.press("tab", "p")
        await pilot.press("u")
        assert len(ledger(app).orders) == 1
        carried_out(app)
        await pilot.press("u")
        assert [name for name, _ in ledger(app).calls()] == ["park", "resume"]
        carried_out(app)
        await pilot.press("u")
        assert len(ledger(app).orders) == 2

    fly(three_boxes(), flight)


def test_undo_that_would_interrupt_work_asks() -> None:
    """D16: also this way round."""
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("l", "l", "r")
        carried_out(app)
        fleet.boxes[2][0]["lanes"][0].update(busy=1, desired="on", state="running")
        app.take_in(update(view=fleet.view()))
        app.flush()
        await pilot.press("u")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("d")
        assert ledger(app).calls()[-1][0] == "park"
        assert ledger(app).calls()[-1][1]["policy"] == "drain"

    fly(fleet, flight)


def test_cancel_and_kill_ask_and_name_the_job() -> None:
    """D16."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("x")
        assert isinstance(app.screen, FleetScreen)
        assert "choose a job first" in seen(app)
        app.point_at(Cursor("spark", "", "200"))
        await pilot.press("X")
        assert "Kill job 200 comfyui_video (gpu on spark, project lm_content)?" in seen(app)
        await pilot.press("enter")
        assert not ledger(app).orders
        await pilot.press("x")
        assert "Its run fails" in seen(app)
        await pilot.press("c")
        assert ledger(app).calls() == [("cancel_job", {"job_id": "200", "requested_by": app.operator.who})]
        await pilot.press("X")
        assert "nothing spent." in seen(app)  # whole
        await pilot.press("k")  # answers, and does not move
        assert ledger(app).calls()[1:] == [("kill_job", {"job_id": "200", "requested_by": app.operator.who})]

    fly(three_boxes(), flight)


def test_cancelling_a_job_of_no_run_threatens_none() -> None:
    fleet = three_boxes()
    fleet.boxes[1][0]["jobs"][0] |= {"family": "ingest", "run_id": None}

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.point_at(Cursor("spark", "", "200"))
        await pilot.press("x")
        assert "stopped hard after 10 s." in seen(app) and "run fails" not in seen(app)

    fly(fleet, flight)


def test_run_next_asks_for_an_id() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("!")
        assert isinstance(app.screen, PromptScreen)
        await pilot.press("4", "2", "enter")
        assert ledger(app).calls()[0][1]["job_id"] == "42"
        await pilot.press("!", "escape")
        assert len(ledger(app).orders) == 1

    fly(three_boxes(), flight)


def test_read_only_offers_nothing_that_changes_anything() -> None:
    """D17: gone from keys, palette, hints and help; pressed anyway, nothing happens."""
    writing = [action for action in actions.ACTIONS if action.writes]

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        keys = [key for action in writing for key in action.keys]
        assert not set(keys) & set(app.active_bindings)
        for action in writing:
            await pilot.press(*action.keys[:1])
            app.action_act(action.id)
            assert isinstance(app.screen, FleetScreen)
        assert app.desk is None
        for key in ("ctrl+p", "question_mark", "2"):
            await pilot.press(key)
            text = seen(app)
            for action in writing:
                assert action.title not in text
            words = set(re.findall(r"\w+", text.lower()))
            assert not words & {"kill", "cancel"}
            await pilot.press("x", "X")
            await pilot.press("escape")
        hints = seen(app).split("\n")[-1]
        assert not any(f" {action.hint} " in hints for action in writing if action.hint)
        assert "quit" in hints

    fly(three_boxes(), flight, read_only=True)


def test_command_list_does_what_it_says() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, CommandsScreen)
        await pilot.press(*"freeze", "enter")
        assert app.frozen is not None

    fly(three_boxes(), flight)


def test_filter_narrows_and_escape_clears() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"comfyui", "enter")
        assert [box.name for box in app.boxes()] == ["spark"]
        assert "/comfyui" in seen(app)
        await pilot.press("escape")
        assert len(app.boxes()) == 3
        await pilot.press("slash", *"nosuchthing", "enter")
        assert "No box matches" in seen(app)

    fly(three_boxes(), flight)


def test_freeze_holds_the_picture_while_data_keeps_coming() -> None:
    fleet = three_boxes()
    clock = StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.press("f")
        before = seen(app).split("\n")[1:-2]
        for second in range(2, 60, 2):
            clock.pass_by(2.0)
            app.take_in(fleet.tick(second))
        app.tick()
        await pilot.pause()
        assert "FROZEN" in seen(app)
        assert seen(app).split("\n")[1:-2] == before
        await pilot.press("f")
        assert seen(app).split("\n")[1:-2] != before

    fly(fleet, flight, clock=clock)


def test_lost_database_is_told_and_comes_back_by_itself() -> None:
    """D13: a banner with age and next try, grey data, then as before."""
    fleet = three_boxes()
    clock = StandingClock()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        clock.pass_by(5.0)
        lost = update(
            state="lost", at=None, mono=MONO + 5, error="connection refused", next_try_s=8.0, lost_since_mono=MONO + 5
        )
        app.take_in(lost)
        app.flush()
        clock.pass_by(3.0)
        app.tick()
        await pilot.pause()
        text = seen(app)
        assert (
            "DATABASE LOST" in text and "3s ago" in text and "next try in 5s" in text and "connection refused" in text
        )
        pane = app.screen.query(BoxPane).first()
        assert pane._colors.greyed
        assert "beelink" in text
        await pilot.press("down", "j", "l")
        assert app.scene.cursor.box == "spark"
        clock.pass_by(5.0)
        app.tick()
        await pilot.pause()
        assert "next try now" in seen(app)
        clock.pass_by(25.0)
        app.take_in(update(mono=MONO + 38, view=fleet.view()))
        app.flush()
        await pilot.pause()
        assert "DATABASE LOST" not in seen(app)
        assert not app.screen.query(BoxPane).first()._colors.greyed

    fly(fleet, flight, clock=clock)


def test_toggling_a_lane_moves_no_column() -> None:
    """D18: widths are fixed."""
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        def columns() -> list[list[int]]:
            return [[i for i, c in enumerate(line) if c in "⡇⢸"] for line in seen(app).split("\n")[1:-3]]

        before, header = columns(), seen(app).split("\n")[0]
        for row in fleet.boxes[1][0]["lanes"]:
            row.update(desired="off", state="parked", busy=0, policy="hard")
        fleet.boxes[1][0]["jobs"].clear()
        app.take_in(update(view=fleet.view()))
        app.flush()
        await pilot.pause()
        assert columns()[:9] == before[:9]
        after = seen(app).split("\n")[0]
        assert "3 lanes parked" in after and len(after) == len(header)
        assert after.index("live") == header.index("live")

    fly(fleet, flight, size=(166, 36))


def test_hostile_names_can_be_walked_over_and_ordered_about() -> None:
    """D19, D20: the screen shows them cleaned, an order names them as they are."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for _ in range(80):
            await pilot.press("j")
        app.point_at(Cursor("[@click=app.quit]run[/]", "[@click=app.quit]run[/]"))
        await pilot.press("p", "h")
        for text in ("2", "4", "question_mark", "ctrl+p"):
            await pilot.press(text, "down", "escape")
        arguments = ledger(app).calls()[-1][1]
        assert (arguments["box"], arguments["queue"]) == ("[@click=app.quit]run[/]", "[@click=app.quit]run[/]")
        app.point_at(Cursor("a\x1b[31mred", "a\x1b[31mred"))
        await pilot.press("p", "h")
        assert ledger(app).calls()[-1][1]["queue"] == "a\x1b[31mred"
        assert app.is_running

    fly(hostile_fleet(), flight)
    assert len(HOSTILE) > 10


def test_keys_before_there_is_a_box_do_no_harm() -> None:
    """j while the deck still connects ended it."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        for key in "j k h l tab enter space p P r R B x X e u s n f comma".split():
            await pilot.press(key)
            app.faults.check()
        assert app.is_running

    fly(None, flight)


def test_a_project_that_has_no_lane_here_is_named_harmlessly() -> None:
    """D20: the message and the question quoted its name as it is in the database."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.show_project("\x1b]52;c;aGk=\x07")
        app.operator._order_queue("resume", "cpu", [str(app.scene.project)])
        await pilot.pause()
        assert "resume cpu on every box, project ?]52;c;aGk=?" in seen(app) and "\x1b" not in seen(app)
        app.say("an error that quotes \x1b[2J", "bad")
        await pilot.pause()
        assert "quotes ?[2J" in seen(app)

    fly(three_boxes(), flight)


@pytest.mark.parametrize("size", [(20, 3), (1, 1), (49, 40), (200, 8)])
def test_too_small_is_one_line_and_recovers(size: tuple[int, int]) -> None:
    """D3."""

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert size[0] < 20 or "flightdeck:" in seen(app)
        assert "beelink" not in seen(app)
        await pilot.press("j")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "beelink" in seen(app)

    fly(three_boxes(), flight)


def test_the_mouse_selects_a_lane_and_a_project() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        rows = seen(app).split("\n")
        y = next(index for index, row in enumerate(rows) if "draining 1" in row)
        await pilot.click(offset=(rows[y].index("draining 1"), y))
        assert (app.scene.cursor.box, app.scene.cursor.lane) == ("spark", "gpu")
        await pilot.click(offset=(rows[0].index("ai_leads"), 0))
        assert app.scene.project == "ai_leads"

    fly(three_boxes(), flight, size=(166, 36))


def test_few_widgets_however_many_boxes() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        assert len(list(app.screen.walk_children())) < 100

    fly(twelve_boxes(), flight, size=(210, 50))


def test_a_tick_repaints_only_what_changed() -> None:
    """One figure changes: one row of one card is drawn again, and nothing else."""
    fleet = three_boxes()

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        shown: list[int] = []
        for pane in app.screen.query(LineView):
            original = pane.show

            def counting(lines: object, *rest: object, original: object = original) -> int:
                count = original(lines, *rest)  # type: ignore[operator]
                shown.append(count)
                return int(count)

            pane.show = counting  # type: ignore[method-assign, assignment]
        fleet.boxes[0][0]["lanes"][1]["queued"] = 29
        app.take_in(update(view=fleet.view()))
        app.flush()
        assert sum(shown) == 1

    fly(fleet, flight, size=(166, 36))


def test_an_order_without_answer_is_told() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        app.desk = None
        await pilot.press("tab", "p")
        assert "no database" in seen(app)

    fly(three_boxes(), flight)


def test_an_empty_database_is_explained() -> None:
    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        assert "Connecting to the database" in seen(app)
        app.take_in(update(view={"boxes": [], "projects": [], "events": [], "leader": None}))
        app.flush()
        await pilot.pause()
        assert "No boxes yet" in seen(app) and "flightdeck demo" in seen(app)
        fleet = three_boxes()
        fleet.boxes[0][0]["lanes"].append(lane("x"))
        app.take_in(fleet.first())
        app.flush()
        await pilot.pause()
        assert "beelink" in seen(app)

    fly(None, flight)


def test_updates_that_come_while_it_leaves_do_no_harm() -> None:
    """The feed does not know that the screen is gone already."""
    fleet = three_boxes()
    apps = []

    async def flight(app: FlightDeckApp, pilot: Pilot[int]) -> None:
        apps.append(app)
        await pilot.press("q")
        app.take_in(fleet.tick(2))
        app.flush()
        app.tick()

    fly(fleet, flight)
    apps[0].take_in(fleet.tick(4))
    apps[0].draw_now()
    apps[0].tick()
    assert apps[0].return_code == 0
