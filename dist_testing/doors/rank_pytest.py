"""A pytest item on a rank: fixtures, the test, teardown, each told to the runner as it happens.

The rank was forked from a process that had collected the tests, so the item is there already; nothing is imported or
collected again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest
from _pytest.capture import CaptureManager
from _pytest.runner import runtestprotocol

from dist_testing.doors.rank_unittest import UnittestDoor
from dist_testing.errors import UsageError
from dist_testing.rank.bootstrap import RankDoor, RankStart
from dist_testing.rank.reporter import Reporter
from dist_testing.world import World

__all__ = ["EXPECTED", "PytestDoor", "PytestSide", "current_world"]

# Before the reason of a test that called `pytest.xfail`: for the runner, which has to tell it from a skip.
EXPECTED = "expected failure: "

_current: list[World] = []


def current_world() -> World | None:
    """The world of this rank; None in the runner."""
    return _current[0] if _current else None


class PytestSide:
    """What ranks have of a pytest session: the collected items, and a pytest that is fit for a rank."""

    def __init__(self, config: pytest.Config, items: Mapping[str, pytest.Item]) -> None:
        """Keep what will be needed.

        Args:
            config: Of the session.
            items: By node id; filled when the tests have been collected.
        """
        self._config = config
        self._items = items
        self._narrator = _Narrator()

    def prepare(self) -> None:
        """Take from pytest what belongs to the runner."""
        config = self._config
        _capture_nothing(config)
        # An expected failure is judged in the runner, where all ranks' outcomes are known.
        config.option.runxfail = True
        config.pluginmanager.register(self._narrator, "dist_testing_narrator")
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self._items.values()):
            # It puts handlers on each of torch's 42 loggers, three times a test. A rank's log gets warnings without it.
            config.pluginmanager.unregister(name="logging-plugin")
            self._narrator.has_caplog = False

    def door(self, body: dict[str, Any]) -> RankDoor:
        """A unittest class brings its own rules."""
        if body["door"] == "unittest":
            return UnittestDoor()
        return PytestDoor(self._config, self._items, self._narrator)


class PytestDoor:
    """Runs collected items on a rank."""

    def __init__(self, config: pytest.Config, items: Mapping[str, pytest.Item], narrator: _Narrator) -> None:
        self._config = config
        self._items = items
        self._narrator = narrator
        self._world: World | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the world."""
        reporter.phase("init")
        self._world = World.of(start)
        _current.append(self._world)
        self._world.prepare()
        self._narrator.reporter = reporter

    def run(self, body: dict[str, Any], reporter: Reporter) -> None:
        """Run one item as pytest would."""
        assert self._world is not None
        self._world.begin_case()
        _keep_temporary_files_in(self._config, self._world)
        runtestprotocol(self._items[body["nodeid"]], log=False, nextitem=None)

    def finish(self) -> None:
        """Give the groups back."""
        assert self._world is not None
        self._world.finish()


class _Narrator:
    """Tells the runner what pytest is doing."""

    reporter: Reporter
    has_caplog = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef.argname == "caplog" and not self.has_caplog:
            raise UsageError(
                "`caplog` was asked for by request.getfixturevalue on a rank, where pytest's log capture is off.\n"
                "It is on when a collected test, or a fixture that one uses, names `caplog` as an argument.\n"
                "Name it as an argument."
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.reporter.phase("setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self.reporter.phase("call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self.reporter.phase("teardown")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and not report.passed:
            if isinstance(call.excinfo.value, pytest.xfail.Exception):
                self.reporter.skipped(f"{EXPECTED}{call.excinfo.value.msg}")
            elif report.skipped:
                self.reporter.skipped(_skip_reason(report))
            else:
                self.reporter.ended_by(call.excinfo.value, str(report.longrepr))
        return report


def _skip_reason(report: pytest.TestReport) -> str:
    # A skip's representation is (file, line, "Skipped: reason").
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _capture_nothing(config: pytest.Config) -> None:
    """Stop pytest's own capture, which was set up in the runner: a rank's output goes to its log.

    The `capsys` and `capfd` fixtures go on working; they need a capture manager, but not a capturing one.
    """
    config.pluginmanager.unregister(name="capturemanager")
    fresh = CaptureManager("no")
    config.pluginmanager.register(fresh, "capturemanager")
    fresh.start_global_capturing()


def _keep_temporary_files_in(config: pytest.Config, world: World) -> None:
    # `tmp_path` would otherwise make a numbered folder per rank outside the run's own, which nobody removes. pytest
    # makes the folder when a test asks for it.
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._basetemp = None
        factory._given_basetemp = world.pytest_tmp_path
