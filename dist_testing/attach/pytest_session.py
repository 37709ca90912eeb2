"""The pytest front end under torchrun: rank 0 is the runner, and the other ranks do what it asks for.

Every rank collects the tests. After that, only rank 0 decides what pytest decides, runs the tests that are not
distributed, and reports. The other ranks print nothing and end with rank 0's exit code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from typing import Any

import pytest

from dist_testing.attach.engine import AttachedEngine
from dist_testing.attach.rank import AttachedRank, connect
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
    rank_info.announce()
    engine = AttachedEngine(spec, budget, context, loader, rank_info, context.as_rank)
    config.pluginmanager.register(Follower(config, rank_info, context) if rank_info.rank else Leader(config, engine))
    return engine


def _own_temporary_folder(config: pytest.Config, rank: int) -> None:
    """Make the parent folder of `tmp_path` now: while a case runs, TMPDIR is the case's own folder."""
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is None:
        return
    if factory._given_basetemp is not None:
        # pytest empties the given folder at the start.
        factory._given_basetemp.mkdir(parents=True, exist_ok=True)
        factory._given_basetemp = factory._given_basetemp / f"rank-{rank}"
    factory.getbasetemp()


class Leader:
    """The plugin of rank 0, which runs the session."""

    def __init__(self, config: pytest.Config, engine: AttachedEngine) -> None:
        self._config = config
        self._engine = engine

    def pytest_sessionstart(self) -> None:
        """Make the temporary folder; with -s, give pytest a copy of the terminal, apart from this rank's output."""
        _own_temporary_folder(self._config, 0)
        if self._config.option.capture == "no":
            writer = self._config.get_terminal_writer()
            writer.flush()
            writer._file = open(os.dup(1), "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """End the session when the world has ended."""
        result = yield
        if reason := self._engine.over:
            item.session.shouldfail = reason
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the exit code: every rank ends with it."""
        self._engine.exit_code = int(exitstatus)


class Follower:
    """The plugin of every other rank."""

    def __init__(self, config: pytest.Config, rank_info: RankInfo, context: PytestRankContext) -> None:
        self._config = config
        self._rank_info = rank_info
        self._context = context
        # Rank 0's; None until rank 0 sends it.
        self._exit_code: int | None = None
        self._undo = contextlib.ExitStack()
        # Rank 0 writes the XML file for all ranks.
        config.option.xmlpath = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Leave the terminal and the cache to rank 0."""
        _own_temporary_folder(self._config, self._rank_info.rank)
        if (cache := getattr(self._config, "cache", None)) is not None:
            cache.set = lambda key, value: None
            self._undo.callback(delattr, cache, "set")
        writer = self._config.get_terminal_writer()
        terminal, writer._file = writer._file, open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._undo.callback(setattr, writer, "_file", terminal)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep errors: rank 0 may ask for a test that this rank could not collect."""
        if report.failed:
            self._context.collection_errors.append(str(report.longrepr))

    def pytest_internalerror(self, excrepr: object) -> None:
        """Print an internal error, because it ends this process."""
        print(f"rank {self._rank_info.rank}: {excrepr}", file=sys.__stderr__)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Take part in the cases that rank 0 asks for."""
        if self._config.option.collectonly:
            return True
        if not self._context.has_tests and not self._context.collection_errors:
            # No test here is distributed: the user runs tests of another kind under torchrun.
            self._undo.close()
            return None
        # Rank 0 judges skip marks, by its own copy of the condition.
        self._config.pluginmanager.unregister(name="skipping")
        directories: tuple[str, ...] = ()
        try:
            connection, directories = connect(self._rank_info)
            self._exit_code = AttachedRank(
                connection, self._context, self._context.as_rank, launcher=self._rank_info.launcher
            ).serve()
        except (InterruptedRunError, LaunchError) as error:
            # torchrun may send the signal again.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print(f"rank {self._rank_info.rank}: {error}", file=sys.__stderr__)
            self._exit_code = int(pytest.ExitCode.INTERRUPTED)
            # A launcher that stops the ranks because one has died stops rank 0, too, which still reads the logs there.
            for path in directories if isinstance(error, LaunchError) else ():
                # Rank 0 may have been killed before it could.
                shutil.rmtree(path, ignore_errors=True)
        session._setupstate.teardown_exact(None)
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
