"""pytest's part in the stream of events: tells of tests, and holds the sinks that pytest's options ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_testing.engine.run_events import run_started
from dist_testing.errors import UsageError
from dist_testing.events.cases import RankOutput
from dist_testing.events.file import EventFile
from dist_testing.events.runs import RunEnded, TestBegan, TestEnded, TestReported, TestsCollected
from dist_testing.events.stream import EventStream
from dist_testing.spec import Spec

__all__ = ["EVENTS_KEY", "OPTION", "FailureReport", "SessionEvents"]

# Set by the Bazel main, whose sinks hear of the session, too.
EVENTS_KEY = pytest.StashKey[EventStream]()
OPTION = "--dist-events"
_SKIPPED = "Skipped: "


class FailureReport:
    """A sink that keeps the reports of distributed failures, to print them as the last thing in the log."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, event: TestReported) -> None:
        """Keep the report, if it is one of this library's."""
        if event.is_distributed:
            self._texts.append(event.text)

    def print(self, config: pytest.Config) -> None:
        """Print all of them."""
        writer = config.get_terminal_writer()
        for text in self._texts:
            writer.line()
            writer.sep("=", "distributed failure")
            # A line that the terminal has no bytes for is escaped by pytest as a whole, with its line ends.
            for line in text.split("\n"):
                writer.line(line)


class SessionEvents:
    """A plugin of pytest that tells the stream of tests.

    Attributes:
        stream: The stream of the session.
    """

    def __init__(
        self,
        config: pytest.Config,
        spec: Spec,
        *,
        show_line: Callable[[str], None],
        tell: Callable[[str], None],
        writes_file: bool,
    ) -> None:
        """Find the stream, or make it, and subscribe the sinks of a session.

        Args:
            config: pytest's.
            spec: What the target asks for.
            show_line: Prints a line on the terminal, where nothing is captured.
            tell: Prints a line on the terminal, whatever is captured.
            writes_file: Whether this process is the one that writes the file that the command line asks for.

        Raises:
            UsageError: If the file cannot be written.
        """
        given = config.stash.get(EVENTS_KEY, None)
        self.stream = EventStream() if given is None else given
        self._is_own = given is None
        self._config = config
        self._failures = FailureReport()
        self._exit_code = int(pytest.ExitCode.INTERNAL_ERROR)
        path: str | None = config.getoption(OPTION)
        self._file = _open(path, config) if path is not None and writes_file else None
        if self._file is not None:
            self.stream.subscribe(self._file, name=f"the event file {path}")
            if self._is_own:
                self.stream.emit(run_started(spec))
        self.stream.subscribe(self._failures, TestReported, name="the report of failures")
        if not hasattr(config, "workerinput"):
            if self._is_own:
                self.stream.warn = tell
            if config.getoption("capture", "no") == "no":
                self.stream.subscribe(
                    lambda event: show_line(f"[rank {event.rank}] {event.line}"), RankOutput, name="the ranks' output"
                )
        config.pluginmanager.register(self)

    def end(self) -> None:
        """The run is over: nothing is told after this. Print the failures, as the last thing in the log."""
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
        """The tests of the session are known."""
        self.stream.emit(TestsCollected(time.monotonic(), len(session.items)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Files that fail or skip as a whole; for the others, their tests speak."""
        if not report.passed:
            self.stream.emit(_reported(report, "collect", 0.0))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.stream.emit(TestBegan(time.monotonic(), nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test is reported."""
        if self.stream.wants(TestReported):
            self.stream.emit(_reported(report, report.when, report.duration))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """All of a test is reported."""
        self.stream.emit(TestEnded(time.monotonic(), nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep what the run ends with."""
        self._exit_code = int(exitstatus)


def _open(text: str, config: pytest.Config) -> EventFile:
    path = _own_path(Path(text), config)
    try:
        return EventFile(path)
    except (OSError, ValueError) as error:
        # The second: a null character.
        raise UsageError(
            f"{OPTION}={text}: {str(path)!r} cannot be written: {error}.\n"
            "The events of the run go there, a line each; the folder has to exist, and the file must not be a pipe.\n"
            f"Write {OPTION}=events.jsonl.gz, for example, or leave it out."
        ) from error


def _own_path(path: Path, config: pytest.Config) -> Path:
    """The path itself; in a worker of pytest-xdist, with the worker's name before the suffixes."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    name = worker.get("workerid")
    if name is None:
        return path
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.{name}{dot}{suffixes}")


def _reported(report: pytest.TestReport | pytest.CollectReport, when: str, duration_s: float) -> TestReported:
    outcome: str = report.outcome
    text = message = ""
    # Set by `reports`; it travels with the report, also from a worker of pytest-xdist.
    own: str | None = getattr(report, "dist_failure", None)
    expected: str | None = getattr(report, "wasxfail", None)
    if report.failed:
        text = own or str(report.longrepr)
        # Where pytest says what happened, and where this library does.
        message = text.rstrip().rpartition("\n")[2] if own is None else text.partition("\n")[0]
    elif expected is not None:
        outcome = "xfailed" if report.skipped else "xpassed"
        message = expected
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        message = reason.removeprefix(_SKIPPED)
    properties = tuple(getattr(report, "user_properties", ()))
    return TestReported(
        time.monotonic(), report.nodeid, when, outcome, duration_s, message, text, own is not None, properties
    )
