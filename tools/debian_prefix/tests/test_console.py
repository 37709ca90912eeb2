"""Progress, on a terminal and in a log."""

from __future__ import annotations

import io
import threading

import pytest
from debian_prefix import console

LIMIT_S = 60.0


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def report_once(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the report on work that lasts until it is reported once."""
    reported = threading.Event()

    def measure() -> str:
        reported.set()
        return "1 of 2 MB"

    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(console, "FIRST_NOTE_S", 0.0)
    monkeypatch.setattr(console, "TERMINAL_INTERVAL_S", LIMIT_S)
    monkeypatch.setattr(console, "LOG_INTERVAL_S", LIMIT_S)
    with console.progress("fetching:", measure):
        assert reported.wait(LIMIT_S)
    return stream.getvalue()


def test_a_log_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a CI log would be full of control characters."""
    assert report_once(io.StringIO(), monkeypatch) == "bazelw: fetching: 1 of 2 MB (0 s)\n"


def test_a_terminal_line_is_redrawn_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Bazel's own output would start in the middle of that line."""
    expected = "\rbazelw: fetching: 1 of 2 MB (0 s)\033[K" + "\r\033[K"
    assert report_once(Terminal(), monkeypatch) == expected


def test_short_work_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every step would be reported."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(console, "FIRST_NOTE_S", LIMIT_S)
    with console.progress("fetching:"):
        pass
    assert stream.getvalue() == ""
