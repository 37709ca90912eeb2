"""Emits the events of tests under pytest, and subscribes the sinks that pytest's options ask for."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.events.event import (
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    EventStream,
    RankOutput,
    RunEnded,
    TestsCollected,
    WorldEnded,
    run_started,
)
from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.record import BAD, DIGITS, OF_THE_MACHINE, STATUSES, CaseRecord, Status, case_name
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.options import EVENTS_OPTION, shows_output_at_once
from dist_testing.core.pytest.reports import failure_message, skip_reason

# The Bazel main sets this, because its own sinks need the events of the session, too.
EVENTS_KEY = pytest.StashKey[EventStream]()
# The outcome that pytest-rerunfailures gives to the report of a test that runs again.
_RERUN = "rerun"
# The classes of pytest, and of pytest-subtests before it.
_SUB_TESTS = ("SubtestReport", "SubTestReport")


@dataclass(slots=True)
class _Running:
    """A case that runs: when it began, the records of its worlds, and pytest's reports."""

    began_s: float
    worlds: list[CaseRecord] = field(default_factory=list)
    reports: list[pytest.TestReport] = field(default_factory=list)


class SessionEvents:
    """Emits the events of tests on the stream of the session, as a plugin of pytest."""

    def __init__(self, config: pytest.Config, spec: Spec, *, writes_file: bool) -> None:
        """Find the stream, or make it, and subscribe the sinks: with `writes_file`, also the event file."""
        self._is_own = EVENTS_KEY not in config.stash
        self.stream = config.stash.get(EVENTS_KEY, EventStream())
        self._config = config
        self._exit_code = int(pytest.ExitCode.INTERNAL_ERROR)
        self._running: dict[str, _Running] = {}
        path: str | None = config.getoption(EVENTS_OPTION)
        self._file = _open(path, config) if path is not None and writes_file else None
        if self._file is not None:
            self.stream.subscribe(self._file, name=f"the event file {path}")
            if self._is_own:
                self.stream.emit(run_started(spec))
        if not hasattr(config, "workerinput"):
            if self._is_own:
                self.stream.warn = self.log_line
            if shows_output_at_once(config):
                self.stream.subscribe(self._show_output, RankOutput, name="the ranks' output")
        config.pluginmanager.register(self)

    def log_line(self, line: str) -> None:
        """Print a line at once, below the unfinished line of pytest; also while pytest captures output."""
        plugins = self._config.pluginmanager
        capture: Any = plugins.getplugin("capturemanager")
        reporter: Any = plugins.getplugin("terminalreporter")
        with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
            reporter.ensure_newline()
            writer = self._config.get_terminal_writer()
            if writer.width_of_current_line:
                # pytest does not count the letter of a test that runs again.
                writer.line()
            writer.line(line)
            writer.flush()

    def _show_output(self, event: RankOutput) -> None:
        self.log_line(f"[rank {event.rank}] {event.line}")

    def end(self) -> None:
        """Emit the last event, close the event file, and print the failures at the end of the log."""
        for nodeid, running in self._running.items():
            # The run ends within the case, and the world knows why.
            for world in running.worlds[-1:] if all(map(_says_little, running.reports)) else []:
                record = replace(world, name=case_name(nodeid), nodeid=nodeid, status="unfinished")
                self.stream.emit(CaseRecorded(time.monotonic(), record))
        if self._is_own:
            self.stream.emit(RunEnded(time.monotonic(), self._exit_code))
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self.stream.warn(f"dist_testing: the event file is not complete: {error}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Emit that the tests are collected."""
        if self.stream.wants(CaseRecorded) and not self.stream.wants(WorldEnded):
            self.stream.subscribe(self._take_world, WorldEnded, name="the records of cases")
        self.stream.emit(TestsCollected(time.monotonic(), len(session.items)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Emit the record of each file that fails or skips as a whole."""
        if not report.passed:
            status, message, text = _told(report)
            record = CaseRecord(case_name(report.nodeid), status, report.nodeid, "collect", message, text)
            self.stream.emit(CaseRecorded(time.monotonic(), record))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Emit that a case begins."""
        self._running[nodeid] = _Running(time.monotonic())
        self.stream.emit(CaseStarted(time.monotonic(), nodeid))

    def _take_world(self, event: WorldEnded) -> None:
        """Keep the record of a world for the case that runs; in this process, and on the stream, it is the last one."""
        if self._running:
            next(reversed(self._running.values())).worlds.append(event.record)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Emit the record of the case once its result is known, and again if its teardown fails."""
        if not self.stream.wants(CaseRecorded):
            return
        running = self._running.setdefault(report.nodeid, _Running(time.monotonic()))
        running.reports.append(report)
        if not _says_little(report):
            self.stream.emit(CaseRecorded(time.monotonic(), _record(running)))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Emit that a case has ended."""
        self._running.pop(nodeid, None)
        self.stream.emit(CaseEnded(time.monotonic(), nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the exit code of the run, which a plugin may have changed."""
        self._exit_code = int(session.exitstatus)


def _open(text: str, config: pytest.Config) -> Any:
    path = Path(text)
    if (worker := getattr(config, "workerinput", {}).get("workerid")) is not None:
        # Each worker of pytest-xdist writes a file of its own, with its name before the suffixes.
        stem, dot, suffixes = path.name.partition(".")
        path = path.with_name(f"{stem}.{worker}{dot}{suffixes}")
    try:
        return add_on_named("event_file", EVENTS_OPTION).load("file")(path)
    except (OSError, ValueError) as error:
        # A null character in the path raises a ValueError.
        raise UsageError(
            f"{EVENTS_OPTION}={text}: {str(path)!r} cannot be written: {error}.\n"
            "The run writes its events there, one per line. The folder must exist, and the file must not be a pipe.\n"
            f"Write {EVENTS_OPTION}=events.jsonl.gz, for example, or leave it out."
        ) from error


def _says_little(report: pytest.TestReport) -> bool:
    """Whether the case may end otherwise: after a passed setup or teardown, a good sub-test, or a try that is over."""
    is_sub_test = type(report).__name__ in _SUB_TESTS and not report.failed
    return report.outcome == _RERUN or is_sub_test or (report.when != "call" and report.passed)


def _record(running: _Running) -> CaseRecord:
    """Return the record of a case: its worlds, and what pytest says, which counts."""
    told = [(*_told(report), report) for report in running.reports if report.outcome != _RERUN]
    # A part of the test that is worse decides, such as a failed teardown after a passed call.
    status, _, _, decisive = min(told, key=lambda one: (STATUSES.index(one[0]), one[3].when != "call"))
    alike = [one for one in told if one[0] == status]
    properties = tuple(pair for *_, report in told for pair in report.user_properties)
    cause = str(dict(properties).get("cause", ""))
    if status == "failed" and cause in OF_THE_MACHINE:
        status = "error"
    nodeid = decisive.nodeid
    # A test may run worlds of its own, which it may expect to fail: then the last one is shown.
    own = [world for world in running.worlds if world.nodeid == nodeid]
    world = (own or running.worlds or [CaseRecord("", status, began_at_s=round(running.began_s, DIGITS))])[-1]
    if status not in BAD:
        # No rank is to blame for a failure that was expected.
        world = replace(world, cause="", culprit=None, failing=(), victims=())
    return replace(
        world,
        name=case_name(nodeid),
        status=status,
        nodeid=nodeid,
        when=str(decisive.when),
        message=next((message for _, message, _, _ in alike if message), ""),
        # Reports of several parts: the failure of the call, and that of the teardown.
        text="\n\n".join(dict.fromkeys(text for _, _, text, _ in alike if text)),
        duration_s=round(sum(report.duration for *_, report in told), DIGITS),
        cause=cause or world.cause,
        tries=max(1, len(own)),
        properties=properties,
    )


def _told(report: pytest.TestReport | pytest.CollectReport) -> tuple[Status, str, str]:
    """Return status, message and text of a report."""
    expected: str | None = getattr(report, "wasxfail", None)
    if report.failed:
        return "failed", failure_message(report).partition("\n")[0], report.longreprtext
    if expected is not None:
        return ("xfailed" if report.skipped else "xpassed"), expected, ""
    return ("skipped", skip_reason(report), "") if report.skipped else ("passed", "", "")
