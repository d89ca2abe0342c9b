"""What a machine must have for these tests, and a pooler of our own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.cable import tcp_server
from engine.store import Store
from engine.store.migrate import migrate
from tests.support import Processes, eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Pooled:
    """One database, past the pooler and through it."""

    direct: str
    pooled: str

    @property
    def store(self) -> Store:
        return Store(self.direct)


@pytest.fixture
def pooler(tmp_path: Path, processes: Processes) -> Iterator[Pooled]:
    """PgBouncer in transaction mode before a server of its own."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("pgbouncer is missing: apt install pgbouncer")
    server_port, port = free_port(), free_port()
    with tcp_server("127.0.0.1", server_port) as direct:
        migrate(Store(direct))
        tmp_path.chmod(0o755)
        settings = tmp_path / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = transaction\n"
            "default_pool_size = 4\nmax_client_conn = 200\nunix_socket_dir =\n"
            + ("user = nobody\n" if os.geteuid() == 0 else "")
        )
        bouncer = processes.spawn([program, str(settings)], cwd="/")
        eventually(lambda: _answers(port), what=lambda: processes.log(bouncer))  # type: ignore[arg-type]
        yield Pooled(direct, f"postgresql://postgres@127.0.0.1:{port}/cable_test")
        processes.end_all()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ip_there() -> bool:
    return shutil.which("ip") is not None and subprocess.run(["ip", "-V"], capture_output=True).returncode == 0
