"""Drives a headless Chromium through its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# For one answer of the browser, on a machine that does much else. Seconds.
_LIMIT_S = 120.0


def chromium() -> str | None:
    """Return the program: `DIST_TESTING_CHROMIUM`, else the first on PATH; None if there is none."""
    return os.environ.get("DIST_TESTING_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A running Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int) -> None:
        self._process = process
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._rest = b""
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **parameters: object) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, f"the browser has ended with {self._process.poll()}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def events(self, session: str, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of a session so far, of some kinds."""
        return [
            event["params"]
            for event in self._events
            if event.get("sessionId") == session and event["method"] in methods
        ]

    def tab(self, *, width: int = 1280, dark: bool = False, script: bool = True) -> Tab:
        """Open an empty tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[feature])
        if not script:
            self.call("Emulation.setScriptExecutionDisabled", session, value=True)
        return Tab(self, session)


class Tab:
    """A tab of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def open(self, page: Path, *, wait_for: str = "true") -> None:
        """Open a file, and wait until it is loaded and a condition in JavaScript is true."""
        self._browser.call("Page.navigate", self._session, url=page.as_uri())
        self.wait(f"document.readyState === 'complete' && location.protocol === 'file:' && ({wait_for})")

    def wait(self, condition: str) -> None:
        """Wait until a condition in JavaScript is true."""
        end = time.monotonic() + _LIMIT_S
        while not self.value(condition):
            assert time.monotonic() < end, condition

    def value(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, also of a promise."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self._browser.call("Runtime.evaluate", self._session, **given)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press a key; `text` is what it types."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, ord(key[0]))
        more = {"text": text or key} if len(key) == 1 or text else {}
        for kind in ("keyDown", "keyUp"):
            given = {"type": kind, "key": key, "windowsVirtualKeyCode": code, **(more if kind == "keyDown" else {})}
            self._browser.call("Input.dispatchKeyEvent", self._session, **given)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self._browser.call("Input.insertText", self._session, text=text)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        picture = self._browser.call("Page.captureScreenshot", self._session, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """Return everything that the console has: errors, warnings, exceptions, refused content."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return list(map(json.dumps, self._browser.events(self._session, *kinds)))

    def requests(self) -> list[str]:
        """Return the addresses of all requests."""
        sent = self._browser.events(self._session, "Network.requestWillBeSent")
        return [one["request"]["url"] for one in sent]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile, and end it afterwards."""
    program = chromium()
    assert program is not None
    # Chromium reads from descriptor 3 and writes to 4.
    read_end, to_browser = os.pipe()
    from_browser, write_end = os.pipe()
    # Its sandbox needs user namespaces or a program of root, which containers lack. The pages are our own.
    options = "--headless=new --disable-gpu --no-first-run --disable-dev-shm-usage --remote-debugging-pipe --no-sandbox"
    shell = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
    names = {"IN": str(read_end), "OUT": str(write_end)}
    command = ["bash", "-c", shell, "bash", program, *options.split(), f"--user-data-dir={profile}", "about:blank"]
    environment = {**os.environ, **names, "HOME": str(profile)}
    process = subprocess.Popen(
        command, env=environment, pass_fds=(read_end, write_end), stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(read_end)
    os.close(write_end)
    running = Browser(process, to_browser, from_browser)
    try:
        yield running
        running.call("Browser.close")
        process.wait(_LIMIT_S)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
