"""A headless Chromium driven over its debugging pipe (DevTools protocol), with the standard library alone.

For pictures of the page and for its tests. Messages are JSON that ends with a NUL byte, on file descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
    "--disable-dev-shm-usage",
)  # fmt: skip
_EXEC = "import os, sys; r, w = int(sys.argv[1]), int(sys.argv[2]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
ANSWER_S = 60.0


class BrowserError(Exception):
    """The browser refused a command, or does not answer."""


def find_browser() -> str | None:
    """The path of a Chromium; None: there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """One browser process. Commands are answered in order; events are kept by the tab that they are about."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self.process = process
        self._write, self._read = write, read
        self._buffer = bytearray()
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises BrowserError."""
        self._last += 1
        number = self._last
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + ANSWER_S
        while True:
            found = self._receive(deadline)
            if found is None:
                raise BrowserError(f"{method}: no answer")
            if found.get("id") != number:
                self.events.append(found)
                continue
            if "error" in found:
                raise BrowserError(f"{method}: {found['error'].get('message')}")
            result: dict[str, Any] = found.get("result", {})
            return result

    def listen(self, seconds: float) -> None:
        """Take in what the browser tells for a while."""
        deadline = time.monotonic() + seconds
        while (found := self._receive(deadline)) is not None:
            self.events.append(found)

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._read, 1 << 16)
            if not part:
                raise BrowserError("the browser has ended")
            self._buffer += part
        text, _, rest = bytes(self._buffer).partition(b"\0")
        self._buffer = bytearray(rest)
        found: dict[str, Any] = json.loads(text)
        return found

    def tab(self, width: int = 1200, height: int = 900, scheme: str = "dark", scripts: bool = True) -> Tab:
        """A new tab with cookies of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session, width, height, scheme, scripts)


class Tab:
    """A page in the browser, as somebody sits before it."""

    def __init__(self, browser: Browser, session: str, width: int, height: int, scheme: str, scripts: bool) -> None:
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        self._loading(lambda: self.call("Page.navigate", url=url))

    def click(self, selector: str, loads: bool = True) -> None:
        """Press the mouse on the middle of an element; ``loads``: wait for the page that this leads to."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]
        if "objectId" not in found:
            raise BrowserError(f"no {selector} on {self.eval('location.href')}")
        self.call("DOM.scrollIntoViewIfNeeded", objectId=found["objectId"])
        quad = self.call("DOM.getContentQuads", objectId=found["objectId"])["quads"][0]
        at = {"x": (quad[0] + quad[4]) / 2, "y": (quad[1] + quad[5]) / 2, "button": "left", "clickCount": 1}

        def press() -> None:
            self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
            self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

        if loads:
            self._loading(press)
        else:
            press()

    def key(self, key: str, code: int, loads: bool = False) -> None:
        """Press a key by its name: ``Enter``, 13."""
        text = "\r" if key == "Enter" else ""

        def press() -> None:
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

        if loads:
            self._loading(press)
        else:
            press()

    def type(self, selector: str, text: str) -> None:
        """Put text into a field."""
        self.eval(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def eval(self, expression: str) -> Any:
        """The value of an expression in the page. Raises BrowserError."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails'].get('text')}")
        return found["result"].get("value")

    def text(self) -> str:
        """What is to be read on the page."""
        return str(self.eval("document.body.innerText"))

    def until(self, look: Callable[[], Any], what: str, seconds: float = ANSWER_S) -> Any:
        """Poll until ``look`` finds something. Raises BrowserError."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(BrowserError):  # between two pages there is none
                if found := look():
                    return found
            if time.monotonic() > deadline:
                raise BrowserError(f"not within {seconds:g} s: {what}; the page says {self.text()[:2000]}")
            self.browser.listen(0.05)

    def complaints(self) -> list[str]:
        """What the browser complained of in this tab: violations of the policy, errors of scripts, of the network."""
        self.browser.listen(0.05)
        found = []
        for event in self.browser.events:
            params = event.get("params", {})
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("text")))
            elif event["method"] == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
                found.append(json.dumps(params["issue"]["details"]))
        return found

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of what is in sight, or of the whole page."""
        more = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            more = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def _loading(self, go: Callable[[], object]) -> None:
        """Do something that leads to a page, and wait until that is loaded."""
        seen = len(self.browser.events)
        go()
        deadline = time.monotonic() + ANSWER_S
        while not any(
            event.get("method") == "Page.loadEventFired" and event.get("sessionId") == self.session
            for event in self.browser.events[seen:]
        ):
            if time.monotonic() > deadline:
                raise BrowserError("no page was loaded")
            self.browser.listen(0.05)


@contextmanager
def browser(program: str | None = None) -> Iterator[Browser]:
    """A browser with an empty profile, which ends with the block. Raises BrowserError where none is installed."""
    found = program or find_browser()
    if found is None:
        raise BrowserError("no Chromium found")
    theirs_read, ours_write = os.pipe()
    ours_read, theirs_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="flightdeck-browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                sys.executable, "-c", _EXEC, str(theirs_read), str(theirs_write), found, *FLAGS, "--remote-debugging-pipe",
                f"--user-data-dir={profile}", "about:blank",
            ],
            pass_fds=(theirs_read, theirs_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs_read)
        os.close(theirs_write)
        one = Browser(process, ours_write, ours_read)
        try:
            yield one
        finally:
            with contextlib.suppress(BrowserError, OSError):
                one.call("Browser.close")
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
            os.close(ours_write)
            os.close(ours_read)
