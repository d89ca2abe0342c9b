"""One call of user code, without a process around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine import registry
from engine.lane.call import Caller
from engine.lane.models import WarmModel
from engine.lane.protocol import Frame


def _call(tmp_path: Path, name: str, inputs: Any = None, **head: Any) -> tuple[str, str]:
    caller = Caller(
        box="kestrel",
        worker="kestrel/gpu/0",
        out_root=tmp_path,
        model=WarmModel(lambda loaded, loading: None),
        report=lambda *_, **__: None,
        is_cancelled=lambda number: number == 7,
    )
    header = {"no": 7, "id": 1, "attempt": 1, "token": 1, "family": "node", "queue": "gpu", "project": "", **head}
    status, said = caller.call(Frame("job", {**header, "name": name}, json.dumps(inputs or {}).encode()))
    return status, said.decode()


def _frames(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]


def test_the_traceback_of_a_failed_node_begins_in_the_users_code(tmp_path: Path) -> None:
    def breaks() -> None:
        raise ValueError("no such file: a.png")

    registry.register_node("breaks", breaks)
    status, text = _call(tmp_path, "breaks")
    assert status == "failed" and text.startswith("ValueError: no such file: a.png")
    assert _frames(text)[0].endswith("in breaks")


def test_the_traceback_of_a_loader_that_fails_begins_in_the_loader(tmp_path: Path) -> None:
    """Nobody looks for a missing file of weights in the engine's own frames."""

    def loader() -> None:
        raise OSError("no weights")

    registry.register_node("paints", lambda: None)
    registry.register_model("m", loader)
    status, text = _call(tmp_path, "paints", model="m")
    assert status == "failed" and text.startswith("OSError: no weights")
    assert _frames(text)[0].endswith("in loader")


def test_a_call_knows_whether_it_was_cancelled(tmp_path: Path) -> None:
    registry.register_node("asks", lambda ctx, n: {"stop": ctx.cancelled(), "n": n})
    assert _call(tmp_path, "asks", {"n": 2}) == ("completed", '{"stop":true,"n":2}')
    assert _call(tmp_path, "asks", {"n": 2}, no=8) == ("completed", '{"stop":false,"n":2}')
