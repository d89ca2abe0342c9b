"""Blows: every two seconds one process is killed or stopped; twice the database goes away; twice a lane sleeps too long."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from tests.chaos.client import Client
from tests.chaos.fleet import Fleet, Member
from tests.chaos.journal import Journal
from tests.chaos.options import EVERY_S, Options
from tests.chaos.server import Database
from tests.lane.fleet import runs

GIVEN_AWAY_WITHIN_S = 130.0  # a freeze is noticed after 42 s; a new leader, or a restarted server, begins to count anew
TOLD_WITHIN_S = 20.0
DOOR_EVERY_S = 5.0  # when it has answered for so long, the server of the job API is killed
KEEP_UP = 2  # lanes that are left alone at any time


class Trouble:
    """Deals blows for as long as :meth:`deal` is called; :meth:`stop` puts everything on its feet again."""

    def __init__(self, options: Options, fleet: Fleet, database: Database, journal: Journal, folder: Path) -> None:
        self.options, self.fleet, self.database = options, fleet, database
        self.journal, self.folder = journal, folder
        self.pick = random.Random(f"{options.seed} trouble")
        self._began = self._next = time.monotonic()
        self._lock = threading.RLock()  # the fleet's members
        self._thaws: list[tuple[float, Member]] = []
        self._head_killed = self._door_up = self._door_look = time.monotonic()
        count = len(options.restarts)
        self._restarts = [(options.feed_s * (0.35 + 0.35 * n), how) for n, how in enumerate(options.restarts)][:count]
        self._freezes = [options.feed_s * (0.05 + 0.4 * n) for n in range(options.long_freezes)]
        self._sleepers: list[threading.Thread] = []
        self.seventy_sevens = 0

    def deal(self, client: Client) -> None:
        """What is due now."""
        now = time.monotonic()
        with self._lock:
            self.fleet.look_after()
            for due, member in [each for each in self._thaws if each[0] <= now]:
                self._thaws.remove((due, member))
                self.fleet.thaw(member)
        since = now - self._began
        if self._restarts and since >= self._restarts[0][0]:
            _, how = self._restarts.pop(0)
            self._restart(how)
        if self._freezes and since >= self._freezes[0]:
            self._freezes.pop(0)
            sleeper = threading.Thread(target=self._sleep_long, args=(client,), name="sleeper", daemon=True)
            self._sleepers.append(sleeper)
            sleeper.start()
        self._strike_door(now)
        if now >= self._next:
            self._next = max(self._next + EVERY_S, now)
            with self._lock:
                self._strike(now)

    @property
    def finished(self) -> bool:
        """Nothing that was begun is still going on."""
        return not self._restarts and not self._freezes and not any(each.is_alive() for each in self._sleepers)

    def stop(self) -> None:
        with self._lock:
            self._thaws.clear()
            self.fleet.calm()

    # --- the blows ---

    def _strike(self, now: float) -> None:
        ready = [lane for lane in self.fleet.lanes if lane.up and not lane.frozen and not lane.reserved]
        if now - self._head_killed > 60.0 and self.pick.random() < 0.3:
            heads = [head for head in self.fleet.heads if head.up]
            if heads:
                self._head_killed = now
                self.fleet.kill(self.pick.choice(heads), self.pick.uniform(0.5, 5.0))
                return
        if len(ready) <= min(KEEP_UP, len(self.fleet.lanes) - 1):
            return
        lane = self.pick.choice(ready)
        blow = self.pick.choices(("child", "lane", "freeze", "whole", "executor"), (38, 30, 14, 10, 8))[0]
        if blow == "child":
            self.fleet.kill_child(lane, self.pick)
        elif blow == "lane":
            # Some come back before anybody misses them, some only after their work was given away.
            self.fleet.kill(lane, self.pick.choice((0.2, 1.0, self.pick.uniform(4.0, 12.0))))
        else:
            only = self.pick if blow == "executor" else None
            self.fleet.freeze(lane, whole=blow == "whole", only_child=only)
            self._thaws.append((now + self.pick.uniform(0.5, 3.0 if self.options.quick else 15.0), lane))

    def _strike_door(self, now: float) -> None:
        """Kill the server of the job API when it has answered for a while; starting takes long on a busy machine."""
        if now < self._door_look:
            return
        self._door_look = now + 0.5
        for door in self.fleet.doors:
            if not door.up or not self.fleet.answers():
                self._door_up = now
            elif now - self._door_up > DOOR_EVERY_S:
                self._door_up = now
                with self._lock:
                    self.fleet.kill(door, self.pick.uniform(0.1, 1.0))

    def _restart(self, how: str) -> None:
        down = self.pick.uniform(0.5, 3.0)
        self.journal.did(
            "database_stop", how=how if self.database.can_restart else "sessions ended", down_s=round(down, 1)
        )
        self.database.restart(how, down)
        self.journal.did("database_back")

    def _sleep_long(self, client: Client) -> None:
        """Stop a lane that runs a long job until the job was given away; it must be told so, and end its executor."""
        try:
            self._sleep_one(Client(client._store, "sleeper", client._stop))
        except Exception as error:
            self.journal.breach("harness", f"long freeze: {type(error).__name__}: {error}")

    def _sleep_one(self, client: Client) -> None:
        while True:
            job, pid = self._endurer(client)
            row = client.all(
                "select status, claimed_box, queue, fencing_token from ingest_jobs where id = {id}", id=job
            )[0]
            with self._lock:
                lane = next(
                    (each for each in self.fleet.lanes if each.name == f"{row['claimed_box']}/{row['queue']}"), None
                )
                if lane is not None and lane.up and not lane.frozen and runs(pid):
                    lane.reserved = True
                    self.fleet.freeze(lane)
                    break
        fence, begun = row["fencing_token"], time.monotonic()
        look = "select 1 as found from job_events where job_id = {id} and fencing_token = {fence} and event_type <> 'stall_suspected'"
        given = False
        while not given and time.monotonic() - begun < GIVEN_AWAY_WITHIN_S:
            given = client.value(look, id=job, fence=fence) is not None
            time.sleep(0.2)
        if not given:
            self.journal.breach("not_given_away", f"job {job} of frozen lane {lane.name} was not given away")
        self.journal.did("given_away", lane=lane.name, job=job, after_s=round(time.monotonic() - begun, 1))
        with self._lock:
            self.fleet.thaw(lane)
        deadline = time.monotonic() + TOLD_WITHIN_S
        told = None
        while told is None and time.monotonic() < deadline:
            told = client.value(
                "select exit_code from job_events where job_id = {id} and fencing_token = {fence} "
                "and event_type = 'lost_claim'",
                id=job,
                fence=fence,
            )
            time.sleep(0.2)
        if told == 77 and not runs(pid):
            self.seventy_sevens += 1
        elif given:
            self.journal.breach(
                "exit_77", f"job {job} of {lane.name}, frozen: told {told}, executor {pid} runs: {runs(pid)}"
            )
        lane.reserved = False
        client.close()

    def _endurer(self, client: Client) -> tuple[int, int]:
        """A job that runs until its executor is killed: its id, and the pid."""
        while True:
            job = client.value(
                "insert into ingest_jobs (task_name, queue, is_priority) values ('endure', 'default', {flag}) returning id",
                flag=True,
            )
            path = self.folder / f"endure-{job}"
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                if path.exists():
                    return job, int(path.read_text())
                time.sleep(0.05)
