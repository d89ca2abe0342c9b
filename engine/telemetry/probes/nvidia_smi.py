"""The throttle counters as ``nvidia-smi`` prints them: slow to ask, but never another field under the same number.

The program ships with the driver, so its text is the measure for counters read by number, and stands in for them where
they disagree or are missing. It runs in a thread of its own, behind a deadline: nobody waits for it, and one that hangs
is killed with all that it started.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.telemetry.meter import Text

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
CHECK_S = 300.0  # between two texts that only check counters
CHECK_SOON_S = 60.0  # after the first one: at the start both may stand at zero, which proves nothing
REST_S = 10.0  # at least, between two texts that are the source
REST_MOST_S = 600.0
REST_PER_RUN = 200.0  # a run is followed by so many times its own length: so at most 0.5 % of a core goes into it
FAILED_S, FAILED_MOST_S = 60.0, 3600.0  # after a run without an answer, doubling

_PLACES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/bin", "usr/lib/wsl/lib", "opt/bin")
_COUNTERS = re.compile(r"Clocks (Event|Throttle) Reasons Counters$", re.IGNORECASE)
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")
_VALUE = re.compile(r"([\d,]+) *([a-zµμ]+)$")
_PER_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}
_CAUSES = (
    ("sw power", "sw_power_ms"),
    ("sync boost", "sync_boost_ms"),
    ("sw thermal", "sw_thermal_ms"),
    ("hw thermal", "hw_thermal_ms"),
    ("hw power brak", "hw_brake_ms"),
)

Counters = Mapping[str, int | None]


def find(root: Path) -> str | None:
    """The program, or None; below another root only in its usual places."""
    if root == Path("/") and (found := shutil.which("nvidia-smi")):
        return found
    paths = (f"{root}/{place}/nvidia-smi" for place in _PLACES)
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def parse(text: str) -> dict[str, dict[str, int | None]]:
    """Microseconds by cause, by the bus id that sysfs writes. What is not a time (N/A, deprecated) is None."""
    found: dict[str, dict[str, int | None]] = {}
    card: dict[str, int | None] | None = None
    inside: int | None = None  # the indent of the section's heading
    for line in text.splitlines():
        words = line.strip()
        indent = len(line) - len(line.lstrip())
        if match := _GPU.match(words):
            domain, rest = match[1].lower().split(":", 1)
            card, inside = found.setdefault(f"{int(domain, 16):04x}:{rest}", {}), None
        elif _COUNTERS.match(words):
            inside = indent
        elif inside is not None and card is not None and words:
            name, colon, value = words.partition(":")
            if indent <= inside or not colon:
                inside = None
            elif cause := next((cause for start, cause in _CAUSES if name.lower().startswith(start)), None):
                card[cause] = _microseconds(value.strip())
    return found


def _microseconds(value: str) -> int | None:
    match = _VALUE.match(value)
    if match is None or (factor := _PER_US.get(match[2])) is None:
        return None
    return int(int(match[1].replace(",", "")) * factor)


class Smi:
    """Asks the program now and then. Not for two callers at once."""

    def __init__(
        self, program: str, clock: Callable[[], float] = time.monotonic, deadline_s: float = DEADLINE_S
    ) -> None:
        self._command = [program, "-q", "-d", "PERFORMANCE"]
        self._deadline_s = deadline_s
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._texts: dict[str, Text] = {}
        self._began = self._ended = float("-inf")
        self._failures = self._checks = 0
        self.error: str | None = None

    def texts(self, wanted: bool, awake: Callable[[], bool] = lambda: True) -> Mapping[str, Text]:
        """The newest text of each card by bus id; never waits. ``wanted``: soon, because a card depends on it.

        While not ``awake`` (a card sleeps, and the program would wake it) nothing is asked.
        """
        running = self._thread is not None and self._thread.is_alive()
        if not running and not self._closed and self._clock() - self._ended >= self._rest(wanted) and awake():
            self._begin()
        return self._texts

    def close(self) -> None:
        """End a run that is on."""
        self._closed = True
        process, thread = self._process, self._thread
        if process is not None:
            _kill(process)
        if thread is not None:
            thread.join(1.0)

    def _rest(self, wanted: bool) -> float:
        if self._failures:
            return min(FAILED_MOST_S, FAILED_S * 2.0 ** min(self._failures - 1, 10))
        if not self._checks:
            return 0.0
        least = REST_S if wanted else CHECK_SOON_S if self._checks == 1 else CHECK_S
        return max(least, min(REST_MOST_S, REST_PER_RUN * (self._ended - self._began)))

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._work, name="nvidia-smi", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        began = self._clock()
        text = self._run()
        ended = self._clock()
        found = parse(text) if text is not None else {}
        self._failures = 0 if any(found.values()) else self._failures + 1
        if self._failures:
            self.error = self.error or "nvidia-smi prints no throttle counters"
        if self._failures == 1:
            log.warning("%s", self.error)
        self._began, self._ended = began, ended
        self._checks += 1
        if not self._failures:  # else the last ones hold until they are too old
            lasts_s = 3 * self._rest(True) + self._deadline_s
            self._texts = {bus: Text(began, ended, counters, lasts_s) for bus, counters in found.items() if counters}

    def _run(self) -> str | None:
        """What the program prints, or None with ``error`` set."""
        self.error = None
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            self.error = f"nvidia-smi: {error}"
            return None
        self._process = process
        try:
            out, _ = process.communicate(timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            self.error = f"nvidia-smi: no answer within {self._deadline_s:g} s"
            return None
        finally:
            self._process = None
            if process.stdout is not None:
                process.stdout.close()
        if process.returncode != 0:
            self.error = f"nvidia-smi: exit {process.returncode}"
            return None
        return out.decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started. One that the kernel does not let go of is left alone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        pass
