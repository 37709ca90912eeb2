"""Emits the events of tests under pytest, and subscribes the sinks that pytest's options ask for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.engine.report_text import printable
from dist_testing.core.engine.run_events import run_started
from dist_testing.core.events.cases import RankOutput
from dist_testing.core.events.file import EventFile
from dist_testing.core.events.runs import RunEnded, TestBegan, TestEnded, TestReported, TestsCollected
from dist_testing.core.events.stream import EventStream
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.options import EVENTS_OPTION
from dist_testing.core.pytest.reports import skip_reason
from dist_testing.core.pytest.reruns import RERUN

# The Bazel main sets this, because its own sinks need the events of the session, too.
EVENTS_KEY = pytest.StashKey[EventStream]()
# Limits of the list of failures at the end of the log.
_MAX_HEADLINES = 30
_HEADLINE_CHARS = 500


class FailureReport:
    """Keeps the reports of distributed failures, and prints them at the end of the log. It is a sink."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, event: TestReported) -> None:
        """Keep the report if this library wrote it."""
        if event.is_distributed:
            self._texts.append(event.text)

    def print(self, config: pytest.Config) -> None:
        """Print all reports."""
        writer = config.get_terminal_writer()
        for text in self._texts:
            writer.line()
            writer.sep("=", "distributed failure")
            # pytest escapes a text as a whole, with its line ends, if the terminal cannot encode it.
            for line in printable(text).split("\n"):
                writer.line(line)
        if len(self._texts) > 1:
            writer.line()
            writer.sep("=", f"{len(self._texts)} distributed failures")
            for line in self._headlines():
                writer.line(line)

    def _headlines(self) -> list[str]:
        """Return the first line of the first reports: with many, only these are near the end of the log."""
        shown = [printable(shorten(text.partition("\n")[0], _HEADLINE_CHARS)) for text in self._texts[:_MAX_HEADLINES]]
        lines = [" ".join(line.splitlines()) for line in shown]
        left_out = len(self._texts) - len(lines)
        return [*lines, f"... and {left_out} more; their reports are above"] if left_out else lines


class SessionEvents:
    """Emits the events of tests, as a plugin of pytest.

    Attributes:
        stream: The stream of the session.
        shows_output: Whether the output of ranks is shown at once.
    """

    def __init__(self, config: pytest.Config, spec: Spec, *, writes_file: bool) -> None:
        """Find the stream, or make it, and subscribe the sinks of a session.

        Args:
            config: Config of the session.
            spec: What the target asks for.
            writes_file: Whether this process writes the event file of the command line.

        Raises:
            UsageError: If the file cannot be written.
        """
        given = config.stash.get(EVENTS_KEY, None)
        self.stream = EventStream() if given is None else given
        self._is_own = given is None
        self._config = config
        self._failures = FailureReport()
        self._exit_code = int(pytest.ExitCode.INTERNAL_ERROR)
        self._told_at_s: float | None = None
        self.shows_output = False
        path: str | None = config.getoption(EVENTS_OPTION)
        self._file = _open(path, config) if path is not None and writes_file else None
        if self._file is not None:
            self.stream.subscribe(self._file, name=f"the event file {path}")
            if self._is_own:
                self.stream.emit(run_started(spec))
        self.stream.subscribe(self._failures, TestReported, name="the report of failures")
        if not hasattr(config, "workerinput"):
            if self._is_own:
                self.stream.warn = self.tell
            self.shows_output = config.getoption("capture", "no") == "no"
            if self.shows_output:
                self.stream.subscribe(self._show_output, RankOutput, name="the ranks' output")
        config.pluginmanager.register(self)

    def tell(self, line: str) -> None:
        """Print a line at once, also inside a unittest class, whose output pytest captures."""
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            self._show_line(line)

    @contextlib.contextmanager
    def at(self, at_s: float) -> Iterator[None]:
        """Give events of tests inside the block this time on the monotonic clock: another process has seen them."""
        self._told_at_s = at_s
        try:
            yield
        finally:
            self._told_at_s = None

    def _now_s(self) -> float:
        return time.monotonic() if self._told_at_s is None else self._told_at_s

    def _show_output(self, event: RankOutput) -> None:
        self._show_line(f"[rank {event.rank}] {event.line}")

    def _show_line(self, line: str) -> None:
        """Print a line below the unfinished line of pytest."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:
            # pytest does not count the letter of a test that runs again.
            reporter._tw.line()
        reporter._tw.line(line)
        reporter._tw.flush()

    def end(self) -> None:
        """Emit the last event, close the event file, and print the failures at the end of the log."""
        if self._is_own:
            self.stream.emit(RunEnded(time.monotonic(), self._exit_code))
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self.stream.warn(f"dist_testing: the event file is not complete: {error}")
        if not hasattr(self._config, "workerinput"):
            self._failures.print(self._config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Emit that the tests are collected."""
        self.stream.emit(TestsCollected(time.monotonic(), len(session.items)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Emit a report for each file that fails or skips as a whole."""
        if not report.passed:
            self.stream.emit(_reported(time.monotonic(), report, "collect", 0.0))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Emit that a test begins."""
        self.stream.emit(TestBegan(self._now_s(), nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Emit the report of a part of a test."""
        if self.stream.wants(TestReported):
            self.stream.emit(_reported(self._now_s(), report, report.when, report.duration))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Emit that a test has ended."""
        self.stream.emit(TestEnded(self._now_s(), nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the exit code of the run."""
        self._exit_code = int(exitstatus)


def _open(text: str, config: pytest.Config) -> EventFile:
    path = _own_path(Path(text), config)
    try:
        return EventFile(path)
    except (OSError, ValueError) as error:
        # A null character in the path raises a ValueError.
        raise UsageError(
            f"{EVENTS_OPTION}={text}: {str(path)!r} cannot be written: {error}.\n"
            "The run writes its events there, one per line. The folder must exist, and the file must not be a pipe.\n"
            f"Write {EVENTS_OPTION}=events.jsonl.gz, for example, or leave it out."
        ) from error


def _own_path(path: Path, config: pytest.Config) -> Path:
    """Return the path; in a worker of pytest-xdist, with the worker's name before the suffixes."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    name = worker.get("workerid")
    if name is None:
        return path
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.{name}{dot}{suffixes}")


def _reported(
    at_s: float, report: pytest.TestReport | pytest.CollectReport, when: str, duration_s: float
) -> TestReported:
    outcome: str = report.outcome
    text = message = ""
    # `reports` sets it. pytest-xdist sends it with the report from a worker.
    own: str | None = getattr(report, "dist_failure", None)
    expected: str | None = getattr(report, "wasxfail", None)
    if report.failed or outcome == RERUN:
        text = own or str(report.longrepr)
        # pytest writes the error in the last line, this library in the first.
        message = text.rstrip().rpartition("\n")[2] if own is None else text.partition("\n")[0]
    elif expected is not None:
        outcome = "xfailed" if report.skipped else "xpassed"
        message = expected
    elif report.skipped:
        message = skip_reason(report)
    properties = tuple(getattr(report, "user_properties", ()))
    return TestReported(at_s, report.nodeid, when, outcome, duration_s, message, text, own is not None, properties)
