"""A pytest item on a rank: fixtures, the test, teardown, each told to the runner as it happens.

The rank was forked from a process that had collected the tests, so the item is there already; nothing is imported or
collected again.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureManager
from _pytest.runner import runtestprotocol

from dist_testing.rank.bootstrap import RankStart
from dist_testing.rank.reporter import Reporter
from dist_testing.world import World, WorldSettings

__all__ = ["PytestBody", "current_world"]

_current: list[World] = []


def current_world() -> World | None:
    """The world of this rank; None in the runner."""
    return _current[0] if _current else None


class PytestBody:
    """Runs one collected item on a rank."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._world: World | None = None

    def run(self, start: RankStart, reporter: Reporter) -> None:
        """Make the world, then run the item as pytest would."""
        request = start.request
        world = World(
            start.rank,
            request.size,
            WorldSettings.from_json(request.settings),
            directory=Path(request.directory),
            store_port=request.store_port,
            store_fd=start.store_fd,
        )
        self._world = world
        _current.append(world)
        reporter.phase("init")
        world.prepare()
        config = self._item.config
        _capture_nothing(config)
        # An expected failure is judged in the runner, where all ranks' outcomes are known.
        config.option.runxfail = True
        _keep_temporary_files_in(config, world.rank_tmp_path)
        narrator = _Narrator(reporter)
        config.pluginmanager.register(narrator, "dist_testing_narrator")
        runtestprotocol(self._item, log=False, nextitem=None)
        if not narrator.has_reported:
            reporter.passed()

    def finish(self) -> None:
        """Give the groups back."""
        assert self._world is not None
        self._world.finish()


class _Narrator:
    """Tells the runner what pytest is doing."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.has_reported = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._reporter.phase("setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._reporter.phase("call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self._reporter.phase("teardown")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and not report.passed:
            self.has_reported = True
            error = call.excinfo.value
            if report.skipped:
                self._reporter.skipped(_skip_reason(report))
            else:
                self._reporter.ended_by(error, str(report.longrepr))
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


def _keep_temporary_files_in(config: pytest.Config, directory: Path) -> None:
    # `tmp_path` would otherwise make a numbered folder per rank outside the run's own, which nobody removes.
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        base = directory / "pytest"
        base.mkdir()
        factory._basetemp = base
