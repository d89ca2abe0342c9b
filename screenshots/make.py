"""Pictures of the deck from real frames: a demo fleet is started, watched for a while, and drawn at every size.

``python -m screenshots.make [--seconds N] [--only NAME]`` writes SVG here, and PNG when a Chromium is installed
(simpler renderers ignore the text widths and misplace every column).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

from engine.feed import Feed, FeedUpdate
from engine.store import Store
from flightdeck.frame import render_frame

HERE = Path(__file__).resolve().parent
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "210x50": (210, 50)}
FONT = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=45.0, help="how long the fleet runs before it is drawn")
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--to", type=Path, default=HERE, help="the folder to write to")
    options = parser.parse_args()
    updates = watch(options.seconds)
    for size, cells in SIZES.items():
        for theme in ("dark", "light"):
            name = f"fleet-{size}-{theme}"
            if options.only in name:
                write(
                    options.to / f"{name}.svg",
                    render_frame(updates, cells, theme, store_name="demo", read_only=False).svg,
                )


def watch(seconds: float) -> list[FeedUpdate]:
    """What a deck on a fresh demo would have heard after ``seconds``, once every box reports."""
    directory = tempfile.mkdtemp(prefix="flightdeck-screenshots-")
    demo = subprocess.Popen(
        [sys.executable, "-m", "flightdeck.cli", "demo", "--headless", "--dir", directory, "--box", "workbench"],
        stdout=subprocess.PIPE,
        text=True,
    )
    updates: list[FeedUpdate] = []
    reporting: set[str] = set()
    complete = threading.Event()

    def take(update: FeedUpdate) -> None:
        updates.append(update)
        reporting.update(sample.box for sample in update.samples)
        if len(reporting) >= 4:
            complete.set()

    try:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"the demo did not start: {line or 'it said nothing'}")
        feed = Feed(lambda: Store(line.split()[1]), take)
        feed.start()
        if not complete.wait(120):
            raise SystemExit(f"only these boxes report after two minutes: {', '.join(sorted(reporting))}")
        time.sleep(seconds)
        feed.stop()
        return updates
    finally:
        demo.terminate()
        demo.wait(timeout=30)
        shutil.rmtree(directory, ignore_errors=True)


def write(path: Path, svg: str) -> None:
    """Save the frame with a font that is there, and its PNG where a browser can draw it."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {FONT}", svg)
    path.write_text(svg)
    print(path)
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        print("  no Chromium found: no PNG")
        return
    box = ElementTree.fromstring(svg).attrib["viewBox"].split()
    size = f"{round(float(box[2]))},{round(float(box[3]))}"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--hide-scrollbars",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={profile}",
                f"--window-size={size}",
                f"--screenshot={path.with_suffix('.png')}",
                path.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


if __name__ == "__main__":
    main()
