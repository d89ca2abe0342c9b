"""Which code a row may name: what is registered, what the host's hook gives, modules of the one configured package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import config, registry
from engine.errors import UnknownTask

PACKAGE = "hosted_nodes_for_a_test"
OUTSIDE = "somewhere_else_for_a_test"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with nodes in it, a module beside it, and a package whose name begins like the first."""
    for package in (PACKAGE, f"{PACKAGE}_too"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / PACKAGE / "fetch.py").write_text("def run(x=0):\n    return {'x': x + 1}\n")
    (tmp_path / PACKAGE / "empty.py").touch()
    (tmp_path / PACKAGE / "broken.py").write_text("import no_such_module_anywhere\n\ndef run(): pass\n")
    (tmp_path / f"{PACKAGE}_too" / "fetch.py").write_text("def run(): pass\n")
    (tmp_path / f"{OUTSIDE}.py").write_text("def run(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith((PACKAGE, OUTSIDE))]:
        del sys.modules[name]


def test_a_module_of_the_package_is_a_node_by_its_short_and_its_full_name(host: Path) -> None:
    config.configure(node_package=PACKAGE)
    for name in ("fetch", f"{PACKAGE}.fetch"):
        assert registry.resolve_node(name)(x=1) == {"x": 2}


@pytest.mark.parametrize(
    "name",
    [
        OUTSIDE, "os", "os.path", "subprocess", "builtins.eval", f"{PACKAGE}_too.fetch", f"{PACKAGE}..{OUTSIDE}", f"..{OUTSIDE}",
        f"{PACKAGE}/fetch", f"{PACKAGE}.fetch:run", f"{PACKAGE}.nothing", "", "fetch.run", "a b", "fetch\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("package", [PACKAGE, None])
def test_importable_modules_outside_the_package_do_not_run_because_a_row_names_them(
    host: Path, name: str, package: str | None
) -> None:
    """Q36: refused, and not even imported; without a package no module is."""
    config.configure(node_package=package)
    with pytest.raises(UnknownTask):
        registry.resolve_node(name)
    assert OUTSIDE not in sys.modules and f"{PACKAGE}_too.fetch" not in sys.modules
    if package is None:
        assert not any(module.startswith(PACKAGE) for module in sys.modules)


def test_a_module_without_run_and_one_that_fails_to_import_say_what_is_wrong(host: Path) -> None:
    config.configure(node_package=PACKAGE)
    with pytest.raises(UnknownTask, match="no function run"):
        registry.resolve_node("empty")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        registry.resolve_node("broken")


def test_what_is_registered_comes_first_then_the_hosts_hook(host: Path) -> None:
    config.configure(node_package=PACKAGE, resolve_node=lambda name: str.upper if name in ("hosted", "fetch") else None)
    registry.register_node("fetch", str.lower)
    assert registry.resolve_node("fetch") is str.lower
    assert registry.resolve_node("hosted") is str.upper
    with pytest.raises(UnknownTask):
        registry.resolve_node(OUTSIDE)


def test_an_ingest_task_is_never_a_module(host: Path) -> None:
    """Q36, for stand-alone tasks."""
    config.configure(node_package=PACKAGE)
    for name in ("fetch", f"{PACKAGE}.fetch", "os.system"):
        with pytest.raises(UnknownTask):
            registry.resolve_task(name)
