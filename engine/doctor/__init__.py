"""``flightdeck doctor``: facts are gathered with deadlines, findings are a function of the facts."""

from engine.doctor.findings import Finding
from engine.doctor.gather import examine, exit_code

__all__ = ["Finding", "examine", "exit_code"]
