"""Counters of what happens to jobs, for whoever watches a rate: they begin at nothing and only ever grow.

Sums over the rows that are kept would fall when old rows go, and a falling counter reads as a restart with all of it at once.
So these are kept in the process that tells them: it reads on in ``job_events`` by their ids, each event once, from where the
history stood when it began. An event may be committed after one with a higher id: ids that were missing are looked for again
for a minute. With several processes, each tells all that happens in the fleet.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.queue.events import without_bytes
from engine.queue.family import FAMILIES
from engine.queue.looking import by_index
from engine.store import Db

BUCKETS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)  # seconds, upper ends
AT_ONCE = 20_000  # events of one statement
LATE_S = 60.0  # so long after a higher id an event may be committed
LATE_MOST = 2_000
PAIRS_MOST = 200  # (queue, project) told apart; the rest together as OTHER
OTHER = ("(other)", "(other)")
TRIPS = range(75, 80)
ENDS = ("completed", "failed", "cancelled", "requeued")
CAUSES = (
    "executor_died", "lane_lost", "lease_lapsed", "operator_stop", "drain", "trip", "retry", "handed_back"
)  # fmt: skip
UNUSUAL = ("stall_suspected", "lost_claim", "stale_write", "refused", "unplaceable")

Pair = tuple[str, str]  # queue, project


@dataclass
class Histogram:
    """How many were at most so long: ``counts`` by bucket of BUCKETS, the last one for what is longer; ``total`` seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, how many are at most that), as an exposition has it."""
        found, so_far = [], 0
        for end, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((end, float(so_far)))
        return found


class Pairs:
    """Keeps the number of (queue, project) that are told apart within bounds."""

    def __init__(self, most: int = PAIRS_MOST) -> None:
        self._most = most
        self._known: set[Pair] = set()
        self._full = False

    @property
    def known(self) -> list[Pair]:
        """Those that were met so far, sorted; with OTHER when there are more."""
        return sorted(self._known | ({OTHER} if self._full else set()))

    def of(self, queue: Any, project: Any) -> Pair:
        pair = (str(queue or ""), str(project or ""))
        if pair in self._known or len(self._known) < self._most:
            self._known.add(pair)
            return pair
        self._full = True
        return OTHER


class Tally:
    """The counters. For one thread at a time."""

    def __init__(self, pairs: Pairs | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.pairs = pairs or Pairs()
        self.attempts: Counter[tuple[str, str, str]] = Counter()  # queue, project, how it ended
        self.requeues: Counter[tuple[str, str, str]] = Counter()  # queue, project, cause
        self.trips: Counter[tuple[str, str, int]] = Counter()  # queue, project, exit code
        self.unusual: Counter[tuple[str, str, str]] = Counter()  # queue, project, type
        self.claims: Counter[Pair] = Counter()
        self.runs: dict[Pair, Histogram] = {}
        self.waits: dict[Pair, Histogram] = {}
        self.unread = 0
        self._ended: Counter[Pair] = Counter()
        self._first: dict[Pair, int] = {}  # what ran when it began
        self._mark: int | None = None
        self._late: dict[int, float] = {}  # missing ids, and until when they are looked for
        self._clock = clock

    def read(self, db: Db, deadline: float) -> None:
        """Count what is new. ``deadline`` (of this clock): what is not read by then is read the next time (``unread``)."""
        with by_index(db):
            self._read(db, deadline)

    def _read(self, db: Db, deadline: float) -> None:
        top = int(db.value("select max(id) as top from job_events") or 0)
        running = self._running(db)
        if self._mark is None or top < self._mark:  # the beginning, or another database under the same name
            self._mark, self._late = top, {}
            pairs = {*running, *self._ended, *self.claims}
            self._first = {pair: self._ended[pair] + running[pair] - self.claims[pair] for pair in pairs}
        self._read_late(db)
        while self._mark < top:
            until = min(top, self._mark + AT_ONCE)
            if self._take(db.all(_STRETCH[db.kind], past=self._mark, until=until)) < until - self._mark:
                self._miss(db, self._mark, until)
            self._mark = until
            if self._clock() >= deadline:
                break
        self.unread = top - self._mark
        self._count_claims(running)

    def series(self, values: Mapping[Any, int], last: Sequence[Any]) -> dict[Any, int]:
        """A counter with a zero for every pair that is known and each of ``last``: the first count of a series that was
        not there before is no increase to whoever reads it."""
        zeros = {(*pair, word): 0 for pair in self.pairs.known for word in last}
        return {**zeros, **values}

    def _read_late(self, db: Db) -> None:
        now = self._clock()
        self._late = {number: until for number, until in self._late.items() if until > now}
        if not self._late:
            return
        here = [row["id"] for row in db.all("select id from job_events where id {any[ids]}", ids=list(self._late))]
        if here:
            self._take(db.all(_THESE[db.kind], ids=here))
            for number in here:
                del self._late[number]

    def _miss(self, db: Db, past: int, until: int) -> None:
        if db.kind != "postgresql":
            return  # one writer at a time: ids come in order
        missing = db.all(
            "select i.id from generate_series({past} + 1, {until}) i(id) where not exists "
            "(select 1 from job_events e where e.id = i.id) order by i.id desc limit {most}",
            past=past,
            until=until,
            most=LATE_MOST,
        )
        for row in missing[: max(0, LATE_MOST - len(self._late))]:
            self._late[row["id"]] = self._clock() + LATE_S

    def _take(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Add groups of events; how many events they are."""
        seen = 0
        for given in rows:
            row = without_bytes(given)
            pair = self.pairs.of(row["queue"], row["project"])
            n = int(row["n"])
            seen += n
            if row["ended"]:
                self.attempts[(*pair, row["event_type"])] += n
                self._ended[pair] += n
            if row["event_type"] == "requeued":
                self.requeues[(*pair, row["cause"] if row["cause"] in CAUSES else "other")] += n
            if row["exit_code"] in TRIPS and row["event_type"] != "stale_write":
                self.trips[(*pair, row["exit_code"])] += n
            if row["event_type"] in UNUSUAL:
                self.unusual[(*pair, row["event_type"])] += n
            _add(self.runs, pair, row, "r")
            _add(self.waits, pair, row, "w")
        return seen

    def _running(self, db: Db) -> Counter[Pair]:
        found: Counter[Pair] = Counter()
        for row in db.all(RUNNING):
            found[self.pairs.of(*without_bytes(row).values())] += 1
        return found

    def _count_claims(self, running: Counter[Pair]) -> None:
        """What was claimed since the beginning: what has ended since, and what runs, without what ran then."""
        for pair in {*self._ended, *running, *self.claims}:
            self.claims[pair] = max(self.claims[pair], self._ended[pair] + running[pair] - self._first.get(pair, 0))


RUNNING = " union all ".join(
    f"select queue, project from {family.table} where status = 'running'" for family in FAMILIES
)


def _add(histograms: dict[Pair, Histogram], pair: Pair, row: Mapping[str, Any], letter: str) -> None:
    counts = [int(row[f"{letter}{i}"] or 0) for i in range(len(BUCKETS) + 1)]
    if not any(counts):
        return
    histogram = histograms.setdefault(pair, Histogram())
    histogram.counts = [have + more for have, more in zip(histogram.counts, counts, strict=True)]
    histogram.total += float(row[f"{letter}_sum"] or 0.0)


def _statement(kind: str, which: str) -> str:
    """Groups of events: how many, how many ended an attempt, and how long these ran and had waited, by bucket."""
    if kind == "postgresql":
        begun = "greatest(j.created_at, coalesce(j.run_after, j.created_at))"
        waited = (  # others may write endless times, which no server subtracts from each other
            f"case when isfinite(j.started_at) and isfinite({begun}) "
            f"then extract(epoch from j.started_at - {begun})::float8 end"
        )
    else:
        waited = (
            "(julianday(j.started_at) - julianday(max(j.created_at, coalesce(j.run_after, j.created_at)))) * 86400.0"
        )
    looked_up = " ".join(
        f"when e.family = '{family.name}' then (select {waited} from {family.table} j where j.id = e.job_id)"
        for family in FAMILIES
    )
    events = (
        "select e.queue, e.project, e.event_type, e.cause, e.exit_code, "
        "case when (e.event_type in ('completed', 'failed') and e.attempt >= 1) or e.event_type = 'requeued' "
        "or (e.event_type = 'cancelled' and e.elapsed_s is not null) then 1 else 0 end as ended, "
        "case when e.event_type = 'completed' and e.attempt >= 1 and e.elapsed_s between 0 and 1e12 then e.elapsed_s end as ran_s, "
        f"case when e.event_type not in ('completed', 'failed') or e.attempt <> 1 then null {looked_up} end as waited_s "
        f"from job_events e where {which}"
    )
    # Materialised: flattened, the look-up of a row would be made again for every bucket that it is compared with.
    return (
        f"with x as materialized ({events}) "
        "select queue, project, event_type, cause, exit_code, ended, count(*) as n, sum(ran_s) as r_sum, "
        f"sum(wait_s) as w_sum, {_buckets('ran_s', 'r')}, {_buckets('wait_s', 'w')} from (select x.*, "
        "case when waited_s < 0 then 0 when waited_s <= 1e12 then waited_s end as wait_s from x) y "
        "group by queue, project, event_type, cause, exit_code, ended"
    )


def _buckets(value: str, letter: str) -> str:
    parts = []
    for i, end in enumerate((*BUCKETS, None)):
        above = f"{value} > {BUCKETS[i - 1]}" if i else f"{value} >= 0"
        upto = f" and {value} <= {end}" if end is not None else ""
        parts.append(f"sum(case when {above}{upto} then 1 else 0 end) as {letter}{i}")
    return ", ".join(parts)


_STRETCH = {kind: _statement(kind, "e.id > {past} and e.id <= {until}") for kind in ("postgresql", "sqlite")}
_THESE = {kind: _statement(kind, "e.id {any[ids]}") for kind in ("postgresql", "sqlite")}
