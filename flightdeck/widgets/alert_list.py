"""Open alerts as rows, for the top of the events page. Pure."""

from __future__ import annotations

from flightdeck.alerts import Alerts
from flightdeck.model import units
from flightdeck.model.deck import Deck
from flightdeck.widgets.lines import Glyphs, Line, Row, fit


def alert_rows(alerts: Alerts, deck: Deck, width: int, most: int, g: Glyphs) -> list[Line]:
    """At most ``most`` rows and a rule; those that nobody has seen first. Empty: no alert is open."""
    found = sorted((alert for alert in alerts.all if alert.open), key=lambda alert: alert.seen)
    if not found or most < 2:
        return []
    rows = []
    shown = found if len(found) < most else found[: most - 2]
    for alert in shown:
        age = units.age(max(0.0, (deck.now() - alert.at).total_seconds()))
        row = Row(width).add("  " if alert.seen else " !", f"{alert.tone}+b").add(" ")
        row.add(fit(alert.word, 11), "dim" if alert.seen else f"{alert.tone}+b").add(f" {age.rjust(6)}  ", "dim")
        row.add(f"{alert.box} {alert.text}".strip(), "dim" if alert.seen else "text")
        rows.append(row.done())
    if len(shown) < len(found):
        rows.append(Row(width).add(f"   and {len(found) - len(shown)} more alerts", "dim").done())
    return [*rows, Row(width).add(g.rule * width, "frame").done()]
