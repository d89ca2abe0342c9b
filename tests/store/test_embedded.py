"""The embedded server: started by the first user, shared, stopped by the last."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT, eventually

_USER = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from engine.store import open_store
from engine.store.migrate import ensure_schema
store = open_store(sys.argv[1])
ensure_schema(store)
with store.connect("test") as db:
    print(db.value("select count(*) from engine_schema_version"), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="flightdeck-embedded-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _user(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _USER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _postmaster(directory: Path) -> int | None:
    file = directory / "pgdata" / "postmaster.pid"
    return int(file.read_text().split()[0]) if file.exists() else None


def test_the_server_is_shared_and_stops_with_its_last_user(directory: Path) -> None:
    url = f"embedded:///{directory}?dbname=fleet_test"
    users = [_user(url) for _ in range(2)]
    try:
        for user in users:
            assert user.stdout is not None
            assert int(user.stdout.readline()) >= 2
        pid = _postmaster(directory)
        assert pid is not None
        _, logged = users[0].communicate("\n", timeout=60)
        assert "pg_ctl" not in logged, "the server's own diary buries what a command says"
        assert _postmaster(directory) == pid, "one user is left"
        late = _user(url)
        users.append(late)
        assert late.stdout is not None
        assert int(late.stdout.readline()) >= 2
        users[1].send_signal(signal.SIGKILL)  # a killed user does not keep the server up
        users[1].wait(timeout=20)
        assert _postmaster(directory) == pid
        _, logged = late.communicate("\n", timeout=60)
        assert "pg_ctl" not in logged
        eventually(lambda: _postmaster(directory) is None, what="the last user stops the server")
    finally:
        for user in users:
            if user.poll() is None:
                user.communicate("\n", timeout=60)
            for stream in (user.stdin, user.stdout, user.stderr):
                if stream is not None:
                    stream.close()
