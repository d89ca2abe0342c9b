"""A small chaos run in the suite: three lanes, some 150 jobs, kills, a cut of every session; then the whole verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.store import Store
from tests.chaos.options import Options
from tests.chaos.run import run


@pytest.mark.timeout(300)
def test_kills_freezes_and_cut_sessions_lose_nothing_and_do_nothing_twice(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1 Q2 Q3 Q8 Q10 Q12 Q23 Q29: what CASES tells of others, all at once."""
    options = Options(
        out=tmp_path / "chaos", jobs=150, lanes=3, store=store.kind, db_url=store.url, quick=True, limit_s=200.0
    )
    for name, value in options.environment.items():
        monkeypatch.setenv(name, value)
    report = run(options, print)
    assert report["breaches"] == []
    assert report["submitted"]["jobs"] >= 80
    assert sum(report["blows"].values()) >= 2
    assert report["found"]["executions"] >= 50
