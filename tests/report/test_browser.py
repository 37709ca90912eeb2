"""The page in a real browser: search, folds, keys, no complaint, no request, and no barrier for its readers.

It needs a Chromium: on PATH (Debian: `apt-get install chromium`), or named by DIST_TESTING_CHROMIUM. The check of
barriers also needs axe-core: the file axe.min.js (`npm pack axe-core`), named by DIST_TESTING_AXE.
"""

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

import pytest

from dist_testing.report.__main__ import main
from tests.report.streams import RULE, Case, write_stream

_AXE = os.environ.get("DIST_TESTING_AXE", "")
_NO_CHROMIUM = (
    "no chromium, chromium-browser, google-chrome or chrome on PATH, and DIST_TESTING_CHROMIUM is not set: "
    "apt-get install chromium, or --test_env=DIST_TESTING_CHROMIUM=/path/to/chromium"
)

_HOSTILE = (
    "</pre></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\u202e\x00" + "y" * 50_000
)
_TEXT = f"head\n{RULE}\noutput of rank 1:\nout\n{RULE}\nrank 1 of 4 failed first: it raised\n\n" + "a line\n" * 50
_READY = "!document.getElementById('controls').hidden"
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
def _browser(profile: Path) -> Iterator[Browser]:
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two targets, with failures of each kind, hostile texts and a few hundred cases."""
    folder = tmp_path_factory.mktemp("page")
    bad = [
        Case("t.py::wrong", "failed", "rank 1 raised ValueError", _TEXT, 4, "failure", 1, (0, 2, 3)),
        Case("t.py::hangs", "failed", "rank 2 did not come", _TEXT, 4, "hang", 2, (0, 1, 3)),
        Case(f"t.py::x[{_HOSTILE[:200]}]", "failed", _HOSTILE, _HOSTILE, 2, "failure", 0, warning=_HOSTILE),
        Case("t.py::skips", "skipped", _HOSTILE, world_size=0),
    ]
    many = [Case(f"m.py::case[{number}]", world_size=2, gpu_wait_s=0.1) for number in range(450)]
    for name, cases in (("bad", bad), ("many", many)):
        place = folder / "testlogs" / "a" / name
        write_stream(place / "test.outputs" / "events.jsonl.gz", cases, target=f"//a:{name}")
        # With an empty test.xml the log of the run is read, too.
        (place / "test.xml").write_text("<testsuites/>", encoding="utf-8")
        lines = "\n".join(f"line {number}" for number in range(300))
        (place / "test.log").write_text(f"{_HOSTILE[:300]}\n{lines}\nthe end", encoding="utf-8")
    out = folder / "page.html"
    assert main([str(folder / "testlogs"), f"--out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser."""
    if chromium() is None:
        pytest.skip(_NO_CHROMIUM)
    with _browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


def _rows(tab: Tab) -> int:
    count: int = tab.value("document.querySelectorAll('#rows tr:not([hidden])').length")
    return count


def _keep(tab: Tab, name: str, folder: Path) -> None:
    """Keep a picture, under Bazel among the undeclared outputs."""
    tab.screenshot(Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR", folder)) / f"{name}.png")


def test_the_browser_is_the_named_one_or_the_first_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, the tests below skip on a machine that has a browser."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DIST_TESTING_CHROMIUM", raising=False)
    assert chromium() is None
    for name in ("chrome", "chromium"):
        program = tmp_path / name
        program.touch(mode=0o755)
        assert chromium() == str(program)
    monkeypatch.setenv("DIST_TESTING_CHROMIUM", "/a/chromium")
    assert chromium() == "/a/chromium"


def test_the_search_leaves_the_cases_with_all_words(chrome: Browser, page: Path, tmp_path: Path) -> None:
    """If it fails, a case cannot be found among ten thousand."""
    tab = chrome.tab()
    tab.open(page, wait_for=_READY)
    assert _rows(tab) == 454
    assert tab.value("document.querySelector('#rows .word').textContent") == "failed"
    for words, count in (("CASE[44 m.", 11), ("//a:bad", 4), ("failed hangs", 1), ("t.hangs", 1), ("", 454)):
        code = f"const s = document.getElementById('search'); s.value = '{words}'; s.dispatchEvent(new Event('input'))"
        tab.value(f"(() => {{ {code} }})()")
        assert _rows(tab) == count, words
        assert tab.value("document.getElementById('found').textContent") == f"{count} of 454 cases"
    tab.press("/")
    tab.type("passed case[44")
    _keep(tab, "search", tmp_path)
    assert _rows(tab) == 11
    assert tab.complaints() == []


def test_a_case_of_the_table_leads_to_its_failure(chrome: Browser, page: Path) -> None:
    """If it fails, the table is a dead end."""
    tab = chrome.tab()
    tab.open(page, wait_for=_READY)
    tab.value("document.getElementById('failure-2').open = false")
    tab.value("[...document.querySelectorAll('#rows a')].find(a => a.getAttribute('href') === '#failure-2').click()")
    tab.wait("location.hash === '#failure-2'")
    tab.wait("document.getElementById('failure-2').open")
    assert tab.value("document.querySelectorAll('#failure-2 svg g rect').length") > 20
    assert tab.complaints() == []


def test_the_keyboard_reaches_everything(chrome: Browser, page: Path) -> None:
    """If it fails, people without a mouse cannot read the page."""
    tab = chrome.tab()
    tab.open(page, wait_for=_READY)
    focus = "document.activeElement.closest('.failure') && document.activeElement.closest('.failure').id"
    for key, expected in (("j", "failure-1"), ("j", "failure-2"), ("k", "failure-1"), ("k", "failure-1")):
        tab.press(key)
        assert tab.value(focus) == expected
    assert tab.value("document.getElementById('failure-1').open") is True
    tab.press("Enter", "\r")
    assert tab.value("document.getElementById('failure-1').open") is False
    tab.press("/")
    assert tab.value("document.activeElement.id") == "search"
    tab.press("j")
    assert tab.value("document.getElementById('search').value") == "j"
    tab.press("Escape")
    assert tab.value("document.activeElement.tagName") == "BODY"
    # Tab reaches each control, and the focus can be seen.
    seen = set()
    for _ in range(40):
        tab.press("Tab")
        seen.add(
            tab.value("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")
        )
        outline = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        assert tab.value(f"document.activeElement === document.body || {outline}"), tab.value(
            "document.activeElement.outerHTML.slice(0, 200)"
        )
    assert {"skip-link", "A", "SUMMARY"} <= seen
    assert tab.complaints() == []


def test_nothing_hostile_runs_and_no_request_leaves(chrome: Browser, page: Path) -> None:
    """If it fails, a test's name runs code in the browser of the person who looks at it."""
    tab = chrome.tab()
    tab.open(page, wait_for=_READY)
    tab.value("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert tab.value("window.hacked") is None
    assert tab.value("document.images.length") == 0
    refused = "fetch('https://example.invalid/').then(() => 'sent', () => 'refused')"
    before = tab.complaints()
    assert tab.requests() == [page.as_uri()]
    assert tab.value(refused) == "refused"
    assert before == []
    assert tab.requests() == [page.as_uri()]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone_and_has_no_barriers(
    chrome: Browser, page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    """If it fails, the page scrolls sideways on a phone, or people with weak sight cannot read it."""
    tab = chrome.tab(width=width, dark=dark)
    tab.open(page, wait_for=_READY)
    assert tab.value("document.documentElement.scrollWidth") <= width
    back = tab.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 23, 26)" if dark else "rgb(252, 252, 251)")
    _keep(tab, f"{width}-{'dark' if dark else 'light'}", tmp_path)
    if not _AXE:
        pytest.skip("the picture is kept; the check of barriers needs DIST_TESTING_AXE")
    tab.value("document.querySelectorAll('details').forEach(d => { d.open = true })")
    tab.value(Path(_AXE).read_text(encoding="utf-8") + ";0")
    found = tab.value(
        "axe.run().then(r => r.violations.map(v => v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map(n => n.html)))"
    )
    assert found == []


def test_the_page_reads_without_javascript(chrome: Browser, page: Path, tmp_path: Path) -> None:
    """If it fails, CI servers that forbid scripts show an empty page."""
    tab = chrome.tab(script=False)
    tab.open(page)
    assert tab.value("document.getElementById('controls').hidden") is True
    assert _rows(tab) == 454
    shown = tab.value("document.querySelector('.culprit').innerText")
    assert "rank 1 of 4 failed first" in shown
    _keep(tab, "without-javascript", tmp_path)
