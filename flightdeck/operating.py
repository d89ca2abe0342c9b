"""What the keys do to the fleet: from cursor to order, asking once where work would be interrupted."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flightdeck.model import units
from flightdeck.model.fleet import Box, Job, Lane, show_project
from flightdeck.model.text import clean
from flightdeck.navigate import selected_lane
from flightdeck.orders import (
    Call,
    JobTarget,
    Order,
    Outcome,
    cordon_order,
    input_order,
    job_order,
    lane_order,
    model_order,
    queue_order,
    retry_order,
)
from flightdeck.screens.dialog import Choice, ConfirmScreen, PromptScreen
from flightdeck.widgets.lines import Span

if TYPE_CHECKING:
    from flightdeck.app import FlightDeckApp

DRAIN = Choice("drain", "d", "drain: let them end", "ok")
HARD = Choice("hard", "h", "hard: kill and requeue", "bad")
JOBS_NAMED = 8


def requested_by() -> str:
    """Who stands in the audit row."""
    try:
        return f"{getpass.getuser()} (deck)"
    except (KeyError, OSError):
        return "deck"


class Operator:
    """The write side of the deck. Reads the app's scene, asks through its dialogs, submits to its order desk."""

    def __init__(self, app: FlightDeckApp) -> None:
        self.app = app
        self.undo: list[Order] = []
        self.who = requested_by()

    # -- lanes

    def toggle(self) -> None:
        box, lane = self._lane()
        if box is None or lane is None:
            return
        if any(part.desired == "on" for part in lane.parts):
            self._park([(box, lane)], f"{lane.queue} on {box.name}{self._whose(lane)}")
        else:
            self._resume([(box, lane)], f"{lane.queue} on {box.name}{self._whose(lane)}")

    def park(self) -> None:
        if self._on_queue("park"):
            return
        box, lane = self._lane()
        if box is not None and lane is not None:
            self._park([(box, lane)], f"{lane.queue} on {box.name}{self._whose(lane)}")

    def resume(self) -> None:
        if self._on_queue("resume"):
            return
        box, lane = self._lane()
        if box is not None and lane is not None:
            self._resume([(box, lane)], f"{lane.queue} on {box.name}{self._whose(lane)}")

    def park_all(self) -> None:
        self._everywhere("park")

    def resume_all(self) -> None:
        self._everywhere("resume")

    def cordon(self) -> None:
        box = self.app.current_box()
        if box is None:
            return
        lanes = [lane for lane in box.lanes if self.app.scene.project in (None, lane.raw_project)]
        if not lanes:
            self.app.say(f"{box.name} has no lanes to cordon", "warn")
            return
        projects = sorted({lane.raw_project for lane in lanes})
        scope = f"{box.name}, every lane{self._projects(projects)}"
        if all(lane.cordoned for lane in lanes):
            self._send(cordon_order(box, projects, "", self.who, True, f"uncordon {scope}"))
            return

        def go(policy: str) -> None:
            self._send(cordon_order(box, projects, policy, self.who, False, f"cordon {scope} ({policy})"))

        self._ask_if_busy(f"Cordon {scope}?", [(box, lane) for lane in lanes], go)

    def _park(self, targets: Sequence[tuple[Box, Lane]], scope: str) -> None:
        def go(policy: str) -> None:
            self._send(lane_order("park", targets, policy, self.who, f"park {scope} ({policy})"))

        self._ask_if_busy(f"Park {scope}?", targets, go)

    def _resume(self, targets: Sequence[tuple[Box, Lane]], scope: str) -> None:
        self._send(lane_order("resume", targets, "", self.who, f"resume {scope}"))

    def _everywhere(self, action: str) -> None:
        project = self.app.scene.project
        chosen = self.app.chosen_queue()
        if chosen is not None:
            self._order_queue(action, chosen.queue, None if project is None else [project])
            return
        _, lane = self._lane()
        if lane is not None:
            self._order_queue(action, lane.raw_queue, None if project is None else [project])

    def _on_queue(self, action: str) -> bool:
        """Where a page has a queue of one project under its cursor, not a lane: order that, on every box."""
        chosen = self.app.chosen_queue()
        if chosen is not None:
            self._order_queue(action, chosen.queue, [chosen.project])
        return chosen is not None

    def _order_queue(self, action: str, queue_name: str, projects: Sequence[str] | None) -> None:
        """Order a queue on every box; ``projects`` None: of every project that has a lane for it."""
        if not queue_name:
            self.app.say("no queue here", "warn")
            return
        boxes = self.app.scene.deck.boxes()
        lanes = [
            (box, part)
            for box in boxes
            for part in box.lanes
            if part.raw_queue == queue_name and (projects is None or part.raw_project in projects)
        ]
        whose = sorted({part.raw_project for _, part in lanes} | set(projects or ()))
        if not whose:
            self.app.say("no lane serves this queue", "warn")
            return
        scope = f"{clean(queue_name, 40)} on every box{self._projects(whose)}"

        def go(policy: str) -> None:
            text = f"{action} {scope}" + (f" ({policy})" if policy else "")
            self._send(queue_order(action, queue_name, whose, boxes, policy, self.who, text))

        if action == "resume":
            go("")
        else:
            self._ask_if_busy(f"Park {scope}?", lanes, go)

    # -- jobs

    def run_next(self) -> None:
        """The chosen job where it waits; else the one whose id is typed."""
        job = self.app.chosen_job()
        if job is not None and job.status == "queued":
            self._send(job_order("run_next", job.id, self.who, f"run {_title(job)} next"))
            return

        def go(typed: str | None) -> None:
            number = (typed or "").strip()
            if number:
                self._send(job_order("run_next", number, self.who, f"run job {number} next"))

        self.app.push_screen(PromptScreen("RUN NEXT", "", "id of a queued job"), go)

    def retry(self) -> None:
        job = self.app.chosen_job()
        if job is None:
            self.app.say("choose a job first (j and k)", "warn")
        elif job.status not in ("failed", "cancelled", "skipped"):
            self.app.say(f"{_title(job)} is {job.status}: only what failed or was cancelled can be run again", "warn")
        else:
            what = f"run {job.run_id} of {_title(job)}" if job.family == "node" else _title(job)
            self._send(retry_order(job, self.who, f"run again: {what}"))

    def cancel(self) -> None:
        self._job(
            "cancel_job",
            "Cancel",
            "It is asked to stop, and stopped hard after 10 s.",
            Choice("yes", "c", "cancel the job", "bad"),
        )

    def kill(self) -> None:
        self._job(
            "kill_job",
            "Kill",
            "Its executor is killed; the job is queued again in front, nothing spent.",
            Choice("yes", "k", "kill and requeue", "bad"),
        )

    def _job(self, call: str, verb: str, effect: str, yes: Choice) -> None:
        job = self.app.chosen_job()
        if job is None:
            self.app.say("choose a job first (j and k)", "warn")
            return
        if call == "cancel_job" and job.status == "queued":
            effect = "It has not begun."
        if call == "cancel_job" and job.family == "node":
            effect += " Its run fails."

        def go(answer: str | None) -> None:
            if answer:
                self._send(job_order(call, job.id, self.who, f"{verb.lower()} {_title(job)}"))

        self.app.push_screen(ConfirmScreen(f"{verb} {_title(job)}?", [(effect, "text")], [yes]), go)

    def answer(self, job: JobTarget, node_id: str, value: Any) -> None:
        """Give a node that waits for a person what was typed."""
        self._send(input_order(job.run_id, node_id, value, self.who, f"answer node {node_id} of run {job.run_id}"))

    # -- models

    def preload(self) -> None:
        self._model("load", "LOAD A MODEL", "id of a model")

    def unload(self) -> None:
        self._model("unload", "UNLOAD A MODEL", "id of the model to drop")

    def _model(self, action: str, label: str, about: str) -> None:
        box = self.app.current_box()
        lanes = [lane for lane in self.app.scene.lanes(box) if lane.raw_queue == "gpu"] if box is not None else []
        if box is None or not lanes:
            self.app.say("this box has no gpu lane", "warn")
            return
        lane = lanes[0]

        def go(typed: str | None) -> None:
            model = (typed or "").strip()
            if model:
                text = f"{action} {model}: gpu on {box.name}{self._whose(lane)}"
                self._send(model_order(action, model, box.raw, lane, self.who, text))

        known = lane.current_model if action == "unload" else ""
        self.app.push_screen(PromptScreen(label, known, f"{about}, on {box.name}"), go)

    # -- undo

    def take_back(self) -> None:
        if not self.undo:
            self.app.say("nothing to undo", "dim")
            return
        last = self.undo[-1]
        parks = [call for call in last.undo if call.name in ("park", "cordon")]
        busy = [(box, lane) for call in parks for box, lane in self._reached(call) if lane.busy]

        def go(policy: str) -> None:
            if last in self.undo:
                self.undo.remove(last)
            calls = tuple(
                Call(call.name, {**call.arguments, "policy": policy}) if call in parks and busy else call
                for call in last.undo
            )
            self._send(Order(f"undo: {last.text}", calls, takes_back=True))

        self._ask_if_busy(f"Undo {last.text}?", busy, go)

    def _reached(self, call: Call) -> list[tuple[Box, Lane]]:
        """The lanes that a call is about."""
        arguments = call.arguments
        return [
            (box, lane)
            for box in self.app.deck.boxes()
            for lane in box.lanes
            if arguments["box"] in ("*", box.raw)
            and arguments.get("queue", "*") in ("*", lane.raw_queue)
            and arguments["project"] == lane.raw_project
        ]

    # -- asking and sending

    def _ask_if_busy(self, title: str, targets: Sequence[tuple[Box, Lane]], go: Callable[[str], None]) -> None:
        """At once where nothing runs; else one question that names the jobs, with the focus on going back."""
        lanes = [(box, part) for box, lane in targets for part in lane.parts]
        busy = sum(part.busy for _, part in lanes)
        jobs = [job for box, part in lanes for job in _jobs_of(box, part)]
        if not busy and not jobs:
            go("drain")  # what was claimed since the last look was not asked about, so it is not killed
            return
        count = max(busy, len(jobs))
        details: list[Span] = [(f"{count} {'job runs' if count == 1 else 'jobs run'} there:", "warn")]
        since = self.app.scene.deck.view_age()
        for job in jobs[:JOBS_NAMED]:
            age = units.age(None if job.age_s is None else job.age_s + since)
            whose = f"  {job.project}" if job.project != "-" else ""
            details.append((f"  {job.queue}{whose}  {job.name}  on {job.box}  {age}", "text"))
        if count > len(jobs[:JOBS_NAMED]):
            details.append((f"  and {count - len(jobs[:JOBS_NAMED])} more", "dim"))

        def answered(policy: str | None) -> None:
            if policy:
                go(policy)

        self.app.push_screen(ConfirmScreen(title, details, [DRAIN, HARD]), answered)

    def _send(self, order: Order) -> None:
        if self.app.desk is None:
            self.app.say("there is no database to send this to", "bad")
        elif self.app.desk.submit(order):
            self.app.say(f"sent: {order.text}", "info", 20.0)
        else:
            self.app.say("the database does not answer; earlier orders are still waiting", "bad")

    def outcome(self, outcome: Outcome) -> None:
        """Called on the UI thread with what became of an order."""
        if outcome.ok and outcome.order.undo and not outcome.order.takes_back:
            self.undo.append(replace(outcome.order))
            del self.undo[:-20]
        elif not outcome.ok and outcome.order.takes_back:
            self.app.say(outcome.text, "bad", 20.0)
            return
        hint = "   u undo" if outcome.ok and outcome.order.undo else ""
        self.app.say(outcome.text + hint, "ok" if outcome.ok else "bad", 12.0 if outcome.ok else 30.0)

    # -- scope in words

    def _lane(self) -> tuple[Box | None, Lane | None]:
        box = self.app.current_box()
        lane = selected_lane(self.app.scene, box, self.app.scene.cursor) if box is not None else None
        if lane is None:
            self.app.say("no lane here", "warn")
        return box, lane

    def _whose(self, lane: Lane) -> str:
        return self._projects(sorted({part.raw_project for part in lane.parts}))

    def _projects(self, raw: Sequence[str]) -> str:
        names = {lane.raw_project: lane.project for box in self.app.scene.deck.boxes() for lane in box.lanes}
        shown = [names.get(project) or show_project(project) for project in raw]  # one may have no lane here
        if len(shown) == 1:
            return "" if shown == ["-"] else f", project {shown[0]}"
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        return f", all {len(shown)} projects: {', '.join(shown[:4])}{more}"


def _title(job: JobTarget) -> str:
    """``job 200 comfyui_video (gpu on spark, project lm_content)``; what is not known is not said."""
    where = " on ".join(part for part in (job.queue, job.box) if part)
    whose = f"project {job.project}" if job.project not in ("", "-") else ""
    about = ", ".join(part for part in (where, whose) if part)
    return f"job {job.id} {job.name}" + (f" ({about})" if about else "")


def _jobs_of(box: Box, lane: Lane) -> list[Job]:
    return [job for job in box.jobs if job.queue == lane.queue and job.raw_project == lane.raw_project]
