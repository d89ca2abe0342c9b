"""The operator's page in a real browser, on a real service with a real lane: with a mouse, a keyboard, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from engine.queue import enqueue
from engine.store import Db, Store
from screenshots.browser import Browser, Tab, browser, find_browser
from tests.support import Processes, command, eventually
from tests.web.conftest import OPERATE, READ, start_service
from tests.web.fleet_rows import seed

pytestmark = pytest.mark.skipif(find_browser() is None, reason="chromium is missing: apt install chromium")

PAGES = ("/", "/page/jobs", "/page/queues", "/page/workers", "/page/throttling", "/page/events", "/docs")
PARK = 'a[aria-label="Park training on hawk"]'
RESUME = 'button[aria-label="Resume training on hawk"]'


@dataclass(frozen=True)
class Fleet:
    """A service, and a lane on the box hawk that trains for a long time."""

    url: str
    db: Db
    job: int
    box: str = "hawk"

    def status(self) -> str:
        return str(self.db.value("select status from ingest_jobs where id = {id}", id=self.job))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@contextmanager
def a_fleet(processes: Processes, store: Store) -> Iterator[Fleet]:
    with store.connect("test") as db:
        seed(db)
        db.run("delete from ingest_jobs where status = 'queued'")
        args = {"steps": 10_000, "step_delay_seconds": 0.05, "samples": 10}
        job = enqueue.enqueue(db, task_name="train", queue="training", args=args)
        processes.spawn(command("queue-claim-worker", "--db", store.url, "--queue", "training", "--box", "hawk"))
        found = Fleet(start_service(processes, store).url, db, int(job.id))
        eventually(lambda: found.status() == "running", what="the job runs")
        yield found


@pytest.fixture
def fleet(processes: Processes, sqlite_store: Store) -> Iterator[Fleet]:
    with a_fleet(processes, sqlite_store) as found:
        yield found


@pytest.fixture
def fleet_on_either(processes: Processes, store: Store) -> Iterator[Fleet]:
    with a_fleet(processes, store) as found:
        yield found


def log_in(tab: Tab, fleet: Fleet, token: str = OPERATE, name: str = "ana") -> Tab:
    tab.open(f"{fleet.url}/")
    tab.type("input[name=token]", token)
    tab.type("input[name=name]", name)
    tab.click("button.go")
    return tab


def lane_row(tab: Tab) -> str:
    """What the fleet page says of the lane of hawk."""
    return str(
        tab.eval("""[...document.querySelectorAll('.box')].find(b => b.innerText.includes('hawk'))
        .querySelector('.lanes tbody tr').innerText""")
    )


def test_list_park_resume_and_cancel_with_a_mouse(chromium: Browser, fleet_on_either: Fleet) -> None:
    fleet = fleet_on_either
    tab = log_in(chromium.tab(), fleet)
    tab.eval("window.same = 1")  # gone when the page is loaded anew: it is not
    tab.until(lambda: "ON" in lane_row(tab) and "1/1" in lane_row(tab), "the lane is on and busy")
    tab.until(lambda: "train" in tab.text(), "the job is listed")
    assert tab.eval("window.same") == 1

    tab.click(PARK)
    assert "Park training on hawk?" in tab.text() and "1 job runs there:" in tab.text()
    assert tab.eval("document.activeElement.textContent") == "Back"
    assert fleet.db.value("select count(*) from worker_controls where box = 'hawk'") == 0
    tab.click("input[value=hard]", loads=False)
    tab.type("input[name=reason]", "new fan")
    tab.click("button.go")
    assert "ordered off (hard)" in tab.text()
    tab.eval("window.same = 2")
    tab.until(lambda: "PARKED" in lane_row(tab), "the lane says that it is parked, and the page without being loaded")
    assert tab.eval("window.same") == 2 and fleet.status() == "queued"
    row = fleet.db.one("select action, requested_by, detail from control_events order by id desc limit 1")
    assert row is not None and (row["action"], row["requested_by"]) == ("park", "web:ana")
    assert row["detail"]["reason"] == "new fan"

    tab.click(RESUME)
    tab.until(lambda: "ON" in lane_row(tab), "the lane is on again")
    eventually(lambda: fleet.status() == "running", what="the job runs again")

    tab.open(f"{fleet.url}/page/jobs/{fleet.job}")
    tab.eval("window.same = 3")
    tab.click(f'a[href="/page/jobs/{fleet.job}/cancel"]')
    assert "asked to stop" in tab.text()
    tab.click("button.go")
    tab.until(lambda: "cancelled" in str(tab.eval("document.querySelector('.head').innerText")), "it is cancelled")
    assert fleet.status() == "cancelled"
    assert tab.complaints() == []


def test_a_wrong_token_is_refused_and_the_read_token_has_no_buttons(chromium: Browser, fleet: Fleet) -> None:
    tab = chromium.tab()
    log_in(tab, fleet, token="wrong-token-0123456789")
    assert "That is not a token of this service." in tab.text() and tab.eval("location.pathname") == "/login"
    tab.open(f"{fleet.url}/page/jobs")
    assert tab.eval("location.pathname + location.search") == "/login?next=%2Fpage%2Fjobs"
    tab.type("input[name=token]", READ)
    tab.click("button.go")
    assert tab.eval("location.pathname") == "/page/jobs"
    tab.open(f"{fleet.url}/")
    assert "hawk" in tab.text() and "read only" in tab.text()
    assert tab.eval("document.querySelectorAll('main form, main .do').length") == 0
    assert tab.eval("document.cookie") == ""  # no script may read the session
    assert [text for text in tab.complaints() if "401" not in text] == []


def test_without_scripts_everything_works(chromium: Browser, fleet: Fleet) -> None:
    tab = log_in(chromium.tab(scripts=False), fleet)
    assert "hawk" in tab.text() and tab.eval("document.querySelector('meta[http-equiv=refresh]').content") == "10"
    tab.click(PARK)
    tab.click("input[value=hard]", loads=False)
    tab.click("button.go")
    assert "ordered off (hard)" in tab.text()
    tab.until(lambda: (tab.open(f"{fleet.url}/"), "PARKED" in lane_row(tab))[1], "the lane is parked")
    tab.click(RESUME)
    assert "ordered on" in tab.text()
    tab.open(f"{fleet.url}/page/jobs?status=failed")
    assert "broke" in tab.text()
    tab.type("input[name=text]", "nothing like it")
    tab.click("main form button")
    assert "No such job." in tab.text()
    assert tab.complaints() == []


def test_the_keyboard_reaches_everything(chromium: Browser, fleet: Fleet) -> None:
    tab = log_in(chromium.tab(), fleet)
    tab.open(f"{fleet.url}/")
    tab.key("Tab", 9)
    assert tab.eval("document.activeElement.className") == "skip"
    tab.eval(f"document.querySelector({PARK!r}).focus()")
    tab.key("Enter", 13, loads=True)
    assert "Park training on hawk?" in tab.text()
    tab.key("Enter", 13, loads=True)  # the focus is on back
    assert tab.eval("location.pathname") == "/"
    assert fleet.db.value("select count(*) from worker_controls where box = 'hawk'") == 0


GROWN = """(() => {
  const main = document.getElementById('main'), old = main.querySelector('.old').textContent;
  if (main === window.seen) return old !== window.old;
  [window.seen, window.old] = [main, old];
  return false;
})()"""


def test_the_header_follows_the_feed_and_the_age_grows(
    chromium: Browser, processes: Processes, pg_store: Store, server_url: str
) -> None:
    with pg_store.connect("test") as db:
        seed(db)
    tab = log_in(chromium.tab(), Fleet(start_service(processes, pg_store).url, db, 0))
    header = "document.querySelector('.who').innerText"
    tab.until(lambda: str(tab.eval(header)).startswith("live"), "the feed is live")
    name = urlsplit(pg_store.url).path.strip("/")
    with psycopg.connect(server_url, autocommit=True) as raw:
        raw.execute(f"alter database {name} allow_connections false")
        raw.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        try:
            tab.until(lambda: "NOT LIVE" in str(tab.eval(header)), "the header says that it is not live")
            tab.until(lambda: tab.eval("document.querySelector('.alarm') !== null"), "the page says so, too")
            tab.until(lambda: tab.eval(GROWN), "its age grows, without being drawn anew")
            assert "NOT LIVE" in tab.eval(header) and " old" in tab.eval(header)
        finally:
            raw.execute(f"alter database {name} allow_connections true")
    tab.until(lambda: str(tab.eval(header)).startswith("live"), "it is live again")
    assert tab.eval("document.querySelector('.alarm') === null")


UNNAMED = ("button", "link", "textbox", "combobox", "radio")
# What explains a row: who ordered what and why, what an attempt said.
OUT_OF_SIGHT = """[...document.querySelectorAll('.near, .stack td.more')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.textContent.trim())"""
CONTRAST = """(() => {
  const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(Number).map((x) => x / 255)
    .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.endsWith(', 0)')) return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
      const a = light(getComputedStyle(e).color), b = light(behind(e));
      return [e.textContent.trim().slice(0, 40), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
    }).filter(([, ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_every_page_fits_is_legible_and_has_names(chromium: Browser, fleet: Fleet, width: int, scheme: str) -> None:
    tab = log_in(chromium.tab(width, 900, scheme), fleet)
    order = "/page/order?action=park&box=*&queue=*"
    ended = fleet.db.value("select id from ingest_jobs where status = 'failed'")
    for path in (*PAGES, order, f"/page/jobs/{fleet.job}", f"/page/jobs/{fleet.job}/cancel", f"/page/jobs/{ended}"):
        tab.open(fleet.url + path)
        assert tab.eval(OUT_OF_SIGHT) == [], path
        assert tab.eval("document.documentElement.scrollWidth") <= width, path
        assert tab.eval(CONTRAST) == [], path
        nodes: list[dict[str, Any]] = tab.call("Accessibility.getFullAXTree")["nodes"]
        for node in nodes:
            if not node.get("ignored") and node.get("role", {}).get("value") in UNNAMED:
                assert node.get("name", {}).get("value"), (path, node)
    assert tab.complaints() == []


def test_a_script_in_the_page_itself_is_not_run(chromium: Browser, fleet: Fleet) -> None:
    tab = log_in(chromium.tab(), fleet)
    tab.eval("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    tab.eval("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 2\">')")
    tab.until(tab.complaints, "the browser tells of it")
    assert tab.eval("window.ran === undefined")
