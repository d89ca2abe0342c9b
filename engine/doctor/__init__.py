"""``flightdeck doctor``: facts are gathered with deadlines, findings are a function of the facts."""

from engine.doctor.examine import examine, exit_code
from engine.doctor.findings import Finding

__all__ = ["Finding", "examine", "exit_code"]
