"""The pytest front end under torchrun: rank 0's process is the runner, and the others make ranks for it.

Every process collects the tests. After that, only rank 0's decides what pytest decides, runs the tests that are not
distributed, and reports. The others print nothing and end with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import pytest

from dist_testing.attach.engine import AttachedEngine
from dist_testing.attach.parent import serve
from dist_testing.attach.rank_info import RankInfo
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.errors import InterruptedRunError, LaunchError, UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.process.messages import Loader
from dist_testing.core.pytest.on_rank import PytestRankContext


def make_engine(
    config: pytest.Config, spec: Spec, budget: Budget, context: PytestRankContext, loader: Loader, rank_info: RankInfo
) -> AttachedEngine:
    """Return the engine of this process, and register its plugin: the leader on rank 0, else a follower.

    Raises:
        UsageError: If an option starts other processes from a rank.
    """
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise UsageError(
            f"-n (pytest-xdist) under {rank_info.launcher}.\n"
            "The ranks of the world exist already; a worker process of a rank is not a rank.\n"
            f"Use {rank_info.launcher} without -n, or -n without {rank_info.launcher}."
        )
    engine = AttachedEngine(spec, budget, context, loader, rank_info, lambda: context.names)
    config.pluginmanager.register(Follower(config, rank_info, context, loader) if rank_info.rank else Leader(engine))
    return engine


class Leader:
    """The plugin of rank 0's process, which runs the session."""

    def __init__(self, engine: AttachedEngine) -> None:
        self._engine = engine

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """End the session when the world has ended."""
        result = yield
        if reason := self._engine.over:
            item.session.shouldfail = reason
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the exit code: every process ends with it."""
        self._engine.exit_code = int(exitstatus)


class Follower:
    """The plugin of every other process."""

    def __init__(self, config: pytest.Config, rank_info: RankInfo, context: PytestRankContext, loader: Loader) -> None:
        self._config = config
        self._rank_info = rank_info
        self._context = context
        self._loader = loader
        # Rank 0's; None until rank 0 sends it.
        self._exit_code: int | None = None
        self._undo = contextlib.ExitStack()
        # Rank 0's process writes the XML file for all ranks.
        config.option.xmlpath = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Leave the terminal and the cache to rank 0's process."""
        if (cache := getattr(self._config, "cache", None)) is not None:
            cache.set = lambda key, value: None
            self._undo.callback(delattr, cache, "set")
        writer = self._config.get_terminal_writer()
        terminal, writer._file = writer._file, open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._undo.callback(setattr, writer, "_file", terminal)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep errors: rank 0 may ask for a test that this process could not collect."""
        if report.failed:
            self._context.collection_errors.append(str(report.longrepr))

    def pytest_internalerror(self, excrepr: object) -> None:
        """Print an internal error, because it ends this process."""
        print(f"rank {self._rank_info.rank}: {excrepr}", file=sys.__stderr__)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """Make a rank for every case that rank 0 asks for."""
        if self._config.option.collectonly:
            return True
        if not self._context.has_tests and not self._context.collection_errors:
            # No test here is distributed: the user runs tests of another kind under torchrun.
            self._undo.close()
            return None
        try:
            self._exit_code = serve(self._rank_info, self._context, self._loader, self._context.names)
        except (InterruptedRunError, LaunchError) as error:
            print(f"rank {self._rank_info.rank}: {error}", file=sys.__stderr__)
            self._exit_code = int(pytest.ExitCode.INTERRUPTED)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit code to rank 0's."""
        is_ours = exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
            pytest.ExitCode.TESTS_FAILED,
        )
        if is_ours and self._exit_code is not None:
            session.exitstatus = self._exit_code
