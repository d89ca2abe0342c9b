"""The pages of the deck by name. A page stands here when it exists; keys, tabs and palette entries follow.

``app.show_page(name, **arguments)`` shows one: ``box`` takes ``box`` (its raw name), ``job`` takes ``job_id``; the others
nothing. Escape leads back to where one came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flightdeck.screens.fleet import FleetScreen

if TYPE_CHECKING:
    from textual.screen import Screen

TOP = ("fleet", "jobs", "throttle", "events", "queues")  # those with a number; the others are opened from one of them

# What is not seen at the start is imported when it is: the first picture does not wait for it.


def _box(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.box import BoxScreen

    return BoxScreen(**arguments)


def _jobs(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.jobs import JobsScreen

    return JobsScreen(**arguments)


def _job(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.job import JobScreen

    return JobScreen(**arguments)


def _throttle(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.throttle import ThrottleScreen

    return ThrottleScreen(**arguments)


def _events(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.events import EventsScreen

    return EventsScreen(**arguments)


def _queues(**arguments: Any) -> Screen[Any]:
    from flightdeck.screens.queues import QueuesScreen

    return QueuesScreen(**arguments)


PAGES: dict[str, Callable[..., Screen[Any]]] = {
    "fleet": FleetScreen,
    "box": _box,
    "jobs": _jobs,
    "job": _job,
    "throttle": _throttle,
    "events": _events,
    "queues": _queues,
}
