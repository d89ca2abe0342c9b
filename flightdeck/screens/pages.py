"""The pages of the deck by name. A page stands here when it exists; keys, tabs and palette entries follow.

``app.show_page(name, **arguments)`` shows one: ``box`` takes ``box`` (its raw name), ``job`` takes ``job_id``; the others
nothing. Escape leads back to where one came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flightdeck.screens.box import BoxScreen
from flightdeck.screens.events import EventsScreen
from flightdeck.screens.fleet import FleetScreen
from flightdeck.screens.job import JobScreen
from flightdeck.screens.jobs import JobsScreen
from flightdeck.screens.queues import QueuesScreen
from flightdeck.screens.throttle import ThrottleScreen

if TYPE_CHECKING:
    from textual.screen import Screen

TOP = ("fleet", "jobs", "throttle", "events", "queues")  # those with a number; the others are opened from one of them

PAGES: dict[str, Callable[..., Screen[Any]]] = {
    "fleet": FleetScreen,
    "box": BoxScreen,
    "jobs": JobsScreen,
    "job": JobScreen,
    "throttle": ThrottleScreen,
    "events": EventsScreen,
    "queues": QueuesScreen,
}
