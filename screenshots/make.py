"""Pictures of the deck and of the page, drawn from a recording: what the README shows.

``python -m screenshots.make [--only NAME]`` plays ``demo.jsonl.gz`` to its end and writes SVG here, and PNG when a Chromium
is installed (simpler renderers ignore the text widths and misplace every column). ``--record 60`` first records a fresh
demo for so many seconds, once it is warm: lanes are parked and drained meanwhile, a process dies, a card gets too hot.
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
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import engine
from engine.feed import FeedUpdate
from engine.store import Store
from flightdeck.frame import Shot, render_frames
from flightdeck.record import Recorder
from flightdeck.recording import Recording, Writer
from flightdeck.replay import BASE
from screenshots import page
from screenshots.browser import FLAGS, find_browser

HERE = Path(__file__).resolve().parent
WARM_S = 400.0  # so long the demo runs before it is recorded: jobs have ended, the GPUs are hot
RECORDING = HERE / "demo.jsonl.gz"
FONT = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"

# name: (size, theme, what is on it, kept as). PNG where a page of the documents shows it: pictures are large.
PICTURES: dict[str, tuple[tuple[int, int], str, Shot, str]] = {
    "fleet-120x40": ((120, 40), "dark", Shot("fleet"), "svg png"),
    "fleet-210x50": ((210, 50), "dark", Shot("fleet"), "png"),
    "fleet-80x24": ((80, 24), "dark", Shot("fleet"), "png"),
    "fleet-120x40-light": ((120, 40), "light", Shot("fleet"), "svg"),
    "box-120x40": ((120, 40), "dark", Shot("box", {"box": "osprey"}), "png"),
    "box-210x50": ((210, 50), "dark", Shot("box", {"box": "osprey"}), "svg"),
    "throttle-120x40": ((120, 40), "dark", Shot("throttle"), "png"),
    "jobs-120x40": ((120, 40), "dark", Shot("jobs"), "png"),
    "job-120x40": ((120, 40), "dark", Shot("job"), "svg"),
    "queues-120x40": ((120, 40), "dark", Shot("queues"), "svg"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=float, metavar="SECONDS", help="record a fresh demo first")
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--to", type=Path, default=HERE, help="the folder to write to")
    options = parser.parse_args()
    if options.record:
        record(RECORDING, options.record)
    recording = Recording.load(RECORDING)
    updates, answers = recording.still(recording.duration_s, BASE), recording.answers(recording.duration_s)
    for name, (size, theme, shot, forms) in PICTURES.items():
        if options.only in name:
            if shot.page == "job":
                shot = Shot("job", {"job_id": longest_job(updates[0])})
            found = render_frames(updates, {"": shot}, size, theme, store_name="demo", read_only=False, answers=answers)
            write(options.to / f"{name}.svg", found[""].svg, forms.split())
    page.draw(updates[0], options.to, options.only)


def longest_job(update: FeedUpdate) -> str:
    """The id of the job that has run longest on a card of the box that is shown."""
    assert update.view is not None
    jobs = [
        job for box in update.view["boxes"] if box["box"] == "osprey" for job in box["jobs"] if job["queue"] == "gpu"
    ]
    return str(max(jobs, key=lambda job: job["age_s"])["id"])


def record(path: Path, seconds: float) -> None:
    """Start a demo, wait until every box reports, record it and give it some orders meanwhile."""
    directory = tempfile.mkdtemp(prefix="flightdeck-screenshots-")
    demo = subprocess.Popen(
        [sys.executable, "-m", "flightdeck.cli", "demo", "--headless", "--dir", directory, "--box", "workbench"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"the demo did not start: {line or 'it said nothing'}")
        url = line.split()[1]
        engine.configure(db_url=url)
        time.sleep(WARM_S)
        writer = Writer(path, "demo", overwrite=True)
        thread = threading.Thread(target=give_orders, args=(seconds,), daemon=True)
        thread.start()
        try:
            Recorder(Store(url), writer, threading.Event()).run(seconds)
        finally:
            writer.close()
        print(f"{path}: {path.stat().st_size / 1024:.0f} kB")
    finally:
        demo.terminate()
        demo.wait(timeout=30)
        shutil.rmtree(directory, ignore_errors=True)


def give_orders(seconds: float) -> None:
    """A wave of new work at first; in the last third what an operator does: one lane parked, one drained."""
    import flightdeck.demo.jobs  # noqa: F401  (registers the nodes)
    from flightdeck.demo.workload import Writer as Workload

    workload = Workload(seed=7)
    for number in range(16):
        project = ("render", "speech")[number % 2]
        engine.submit_run(workload.graph(project), project=project)
    time.sleep(seconds * 0.6)
    engine.park(queue="cpu", box="harrier", project="speech", policy="hard", reason="fan is loud", requested_by="ops")
    time.sleep(seconds * 0.15)
    engine.park(queue="gpu", box="kestrel", project="render", policy="drain", requested_by="ops")


def write(path: Path, svg: str, forms: Sequence[str] = ("svg", "png")) -> None:
    """Save the frame with a font that is there; as PNG where a browser can draw it."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {FONT}", svg)
    path.write_text(svg)
    if "png" in forms:
        picture(path, svg)
    if "svg" in forms:
        print(path)
    else:
        path.unlink()


def picture(path: Path, svg: str) -> None:
    """The PNG of an SVG file, beside it."""
    browser = find_browser()
    if browser is None:
        print(f"{path.with_suffix('.png')}: no Chromium found, not drawn")
        return
    box = ElementTree.fromstring(svg).attrib["viewBox"].split()
    size = f"{round(float(box[2]))},{round(float(box[3]))}"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={size}",
                f"--screenshot={path.with_suffix('.png')}",
                path.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(path.with_suffix(".png"))


if __name__ == "__main__":
    main()
