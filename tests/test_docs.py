"""The pages say what is so: the tests, files and settings that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import config
from tests.support import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text()):
        assert (ROOT / path).is_file(), f"{page.name} names {path}"
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_default_that_a_page_tells_is_the_default(page: Path) -> None:
    """Numbers stand as ``10 s (`setting`)`` or ``5 (`setting`)``."""
    for number, name in re.findall(r"([\d,.]+)(?: (?:s|seconds|times|%|GiB))? \(`(\w+)`\)", page.read_text()):
        if name in config.DEFAULTS:
            assert float(number.replace(",", "")) == float(config.DEFAULTS[name]), f"{page.name}: {name}"


def test_every_variable_that_pages_or_code_name_is_known() -> None:
    """Whoever sets what a page says is told of no mistake."""
    texts = [*PAGES, *ROOT.glob("engine/**/*.py"), *ROOT.glob("flightdeck/**/*.py")]
    named = {name for page in texts for name in re.findall(r"FLIGHTDECK_[A-Z_]*[A-Z]\b(?!_)", page.read_text())}
    assert {"FLIGHTDECK_DB_URL", "FLIGHTDECK_PROFILE"} < named
    assert config.ignored_variables(dict.fromkeys(named, "x")) == []


def test_each_of_the_ten_scenarios_has_its_page_and_the_page_names_its_tests() -> None:
    pages = {page.name[:2]: page.read_text() for page in ROOT.glob("docs/scenarios/[0-9]*.md")}
    assert sorted(pages) == [f"{n:02}" for n in range(1, 11)]
    for number, text in pages.items():
        assert f"tests/scenarios/test_{number}_" in text
