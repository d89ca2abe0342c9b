"""GET /metrics: the project's jobs as JSON, or the whole fleet as text for Prometheus.

One look at the database at a time, whoever asks; what a long one finds is told to all who ask within a second. Gauges are what is;
counters and histograms begin with this process (see :mod:`engine.queue.tally`), which is what rates are made of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from engine.lane.exits import NAMES
from engine.queue.metrics import fleet_gauges, project_metrics
from engine.queue.services import version
from engine.queue.tally import CAUSES, ENDS, TRIPS, UNUSUAL, Histogram, Pair, Tally
from engine.telemetry.throttle_tally import CAUSES as CAUSES_HELD
from engine.telemetry.throttle_tally import ThrottleTally
from engine.web.answers import answer
from engine.web.bodies import BadBody, chosen, single
from engine.web.openapi import documented
from engine.web.problems import problem

router = APIRouter(tags=["metrics"])

QUICK_S = 0.1  # an answer that took longer
KEPT_S = 1.0  # is good for so long
SCRAPE_S = 2.0  # reading on in the events ends then; the next scrape goes on

T = TypeVar("T")


@router.get("/metrics", summary="The queue in numbers", **documented("metrics"))
def metrics(request: Request) -> Response:
    """JSON about the jobs of the project that is served; text for Prometheus, about all projects, when the Accept header
    asks for it or `format` does."""
    try:
        given = single(request, "format")
        wanted = chosen(given, "format", ("json", "prometheus"))
    except BadBody as error:
        return problem(422, str(error))
    accept = request.headers.get("accept", "")
    watch = _watch(request.app.state)
    if wanted == "json" or (wanted is None and not wants_text(accept)):
        return answer(watch.numbers())
    if wanted == "prometheus" and not wants_text(accept):
        accept = ""
    try:
        encode, content_type = exposition.choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = exposition.choose_encoder("")
    return Response(encode(watch.collector()), headers={"content-type": content_type})


def wants_text(accept: str) -> bool:
    """Whether an Accept header puts Prometheus' formats before JSON; no preference is JSON."""
    best = {"text": 0.0, "json": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind in ("text/plain", "text/*", "application/openmetrics-text"):
            best["text"] = max(best["text"], quality)
        elif kind in ("application/json", "application/*"):
            best["json"] = max(best["json"], quality)
    return best["text"] > best["json"]


def _watch(state: Any) -> Watch:
    """The application's one watch."""
    with _making:
        if not hasattr(state, "watch"):
            state.watch = Watch(state.databases.borrow, state.settings.project)
        found: Watch = state.watch
        return found


_making = threading.Lock()


class Watch:
    """What both forms of /metrics are made of. Safe to use from many threads."""

    def __init__(self, borrow: Callable[[], Any], project: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._borrow = borrow
        self._project = project
        self._clock = clock
        self._tally = Tally()
        self._throttle = ThrottleTally()
        self._numbers: Kept[dict[str, Any]] = Kept(clock)
        self._families: Kept[list[Metric]] = Kept(clock)

    def numbers(self) -> dict[str, Any]:
        """The JSON."""
        return self._numbers.get(self._read_numbers)

    def collector(self) -> Families:
        """The metric families, in the shape in which an exposition takes them."""
        return Families(self._families.get(self._read_families))

    def _read_numbers(self) -> dict[str, Any]:
        with self._borrow() as db:
            return project_metrics(db, self._project)

    def _read_families(self) -> list[Metric]:
        begun = self._clock()
        with self._borrow() as db:
            self._tally.read(db, begun + SCRAPE_S)
            self._throttle.read(db)
            gauges = fleet_gauges(db, self._tally.pairs)
            kind = db.kind
        return [*families(gauges, self._tally, self._throttle, kind), *_own(self._clock() - begun, self._tally.unread)]


class Kept(Generic[T]):
    """One maker at a time. An answer that was long in the making is given to all who ask within a second; others are made
    anew, so that whoever submits a job and asks finds it counted. Who waited for one that failed is told the same."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: tuple[float, T] | None = None  # good until
        self._failed: tuple[float, Exception] | None = None

    def get(self, make: Callable[[], T]) -> T:
        asked = self._clock()
        with self._lock:
            # Each would try in its turn, for as long as a database takes that hangs.
            if self._failed is not None and asked <= self._failed[0]:
                raise self._failed[1].with_traceback(None)
            begun = self._clock()
            if self._kept is not None and begun < self._kept[0]:
                return self._kept[1]
            try:
                value = make()
            except Exception as error:
                self._failed = self._clock(), error
                raise
            now = self._clock()
            self._failed = None
            self._kept = (now + KEPT_S, value) if now - begun > QUICK_S else None
            return value


class Families(Collector):
    """A fixed list of metric families."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(gauges: Mapping[str, Any], tally: Tally, throttle: ThrottleTally, store: str) -> Iterator[Metric]:
    """Everything about the fleet. Pure."""
    place, known = ["queue", "project"], tally.pairs.known
    yield _gauge(
        "build_info", "The version that serves this, and its database.", ["version", "store"], {(version(), store): 1}
    )
    yield _gauge(
        "queue_depth",
        "Jobs that wait, also those whose time has not come; 100000: so many or more.",
        place,
        {pair: gauges["depth"].get(pair, 0) for pair in known},
    )
    yield _gauge(
        "queue_running",
        "Jobs that are claimed by a lane.",
        place,
        {pair: gauges["running"].get(pair, 0) for pair in known},
    )
    yield _gauge(
        "queue_oldest_age_seconds",
        "How long the first of what is due waits; 0: nothing does.",
        place,
        {pair: gauges["oldest_s"].get(pair, 0.0) for pair in known},
    )
    yield _gauge("lanes", "Lanes by state; silent: not heard of for 30 s.", [*place, "state"], gauges["lanes"])
    yield _gauge("lane_slots", "Slots of lanes that are heard of.", place, gauges["slots"])
    yield _gauge("lane_slots_busy", "Slots that run a job.", place, gauges["busy"])
    yield _gauge("leader", "1 when an orchestrator leads.", [], {(): gauges["leader"]})
    yield _gauge(
        "services",
        "Orchestrators, schedulers, recorders and web services that are heard of.",
        ["kind"],
        gauges["services"],
    )
    yield _gauge("box_sample_age_seconds", "Age of the newest sample of a box.", ["box"], gauges["sample_age_s"])
    yield _counter("claims", "Attempts that were begun.", place, {pair: tally.claims[pair] for pair in known})
    yield _counter("attempts", "Attempts that ended, by how.", [*place, "outcome"], tally.series(tally.attempts, ENDS))
    yield _counter(
        "requeues",
        "Attempts that ended with the job back in the queue, by cause.",
        [*place, "cause"],
        tally.series(tally.requeues, CAUSES),
    )
    yield _counter(
        "trips",
        "Attempts that were killed on purpose, by exit code.",
        [*place, "exit_code", "reason"],
        {
            (queue, project, str(code), NAMES[code]): n
            for (queue, project, code), n in tally.series(tally.trips, list(TRIPS)).items()
        },
    )
    yield _counter(
        "unusual_events", "What else is unusual, by type.", [*place, "type"], tally.series(tally.unusual, UNUSUAL)
    )
    yield _histogram(
        "job_wait_seconds",
        "From being due to the begin, of jobs that ended in their first attempt.",
        place,
        {pair: tally.waits.get(pair, Histogram()) for pair in known},
    )
    yield _histogram(
        "job_run_seconds",
        "How long attempts ran that completed.",
        place,
        {pair: tally.runs.get(pair, Histogram()) for pair in known},
    )
    yield _counter(
        "throttle_seconds",
        "How long the hardware was held back, by cause; causes overlap.",
        ["box", "cause"],
        {**{(box, cause): 0.0 for box in gauges["sample_age_s"] for cause in CAUSES_HELD}, **throttle.seconds},
    )


def _own(took_s: float, unread: int) -> Iterator[Metric]:
    yield _gauge("scrape_duration_seconds", "How long the look at the database took.", [], {(): took_s})
    yield _gauge("events_unread", "Events that counters and histograms do not know yet.", [], {(): unread})


def _labels(key: Any) -> list[str]:
    return [str(part) for part in (key if isinstance(key, tuple) else (key,))]


def _gauge(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    found = GaugeMetricFamily(f"flightdeck_{name}", text, labels=labels)
    for key, value in sorted(values.items(), key=str):
        found.add_metric(_labels(key), value)
    return found


def _counter(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    found = CounterMetricFamily(f"flightdeck_{name}", text, labels=labels)
    for key, value in sorted(values.items(), key=str):
        found.add_metric(_labels(key), value)
    return found


def _histogram(name: str, text: str, labels: list[str], values: Mapping[Pair, Histogram]) -> Metric:
    found = HistogramMetricFamily(f"flightdeck_{name}", text, labels=labels)
    for key, value in sorted(values.items()):
        found.add_metric(_labels(key), buckets=value.cumulative(), sum_value=value.total)
    return found
