"""The pytest front end under torchrun: rank 0's process is the runner, and the others make ranks for it.

Every process collects the tests. After that, only rank 0's decides what pytest decides, runs the tests that are not
distributed, and reports. The others print nothing and end with its exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import unittest
from typing import Any

import pytest

from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.parent import serve
from dist_testing.attach.rank_info import RankInfo, reachable_host
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import LaunchError, UsageError
from dist_testing.core.ground.layout import LOOPBACK
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import Isolation, isolation_named
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.pytest.internals import write_terminal_to
from dist_testing.core.pytest.pytest_rank import PytestRankContext


def make_engine(
    config: pytest.Config, spec: Spec, budget: Budget, context: PytestRankContext, loader: Loader, rank_info: RankInfo
) -> AttachedEngine:
    """Return the engine of this process, and register its plugin: the engine itself on rank 0, else a follower."""
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        raise UsageError(
            f"-n (pytest-xdist) under {rank_info.launcher}.\n"
            "The ranks of the world exist already; a worker process of a rank is not a rank.\n"
            f"Use {rank_info.launcher} without -n, or -n without {rank_info.launcher}."
        )
    engine = AttachedEngine(spec, budget, context, loader, rank_info)
    config.pluginmanager.register(Follower(config, rank_info, context, loader) if rank_info.rank else engine)
    return engine


class AttachedEngine(Engine):
    """Runs cases on one rank below each launched process, and skips a case that needs others.

    In rank 0's process it is also a plugin, which ends the session when the world has ended.
    """

    def __init__(
        self, spec: Spec, budget: Budget, context: PytestRankContext, loader: Loader, rank_info: RankInfo
    ) -> None:
        """Begin the run of rank 0's process. The arguments are as for `Engine`."""
        super().__init__(spec, budget, context, loader)
        # The other launched processes will end with it.
        self._exit_code = 1
        self._rank_info = rank_info
        self._context = context
        self._launcher: AttachedLauncher | None = None

    @functools.cached_property
    def _host(self) -> str:
        return reachable_host(self._rank_info) if self._rank_info.has_other_nodes else LOOPBACK

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """End the session when the world has ended."""
        result = yield
        if self._launcher is not None and self._launcher.gone:
            item.session.shouldfail = self._launcher.exit_message().partition("\n")[0]
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the exit code: every process ends with it."""
        self._exit_code = int(exitstatus)

    def start(self, case: Case) -> RunningCase:
        """Start a case; skip one that needs other ranks than those that were launched."""
        if reason := self._unfit(case):
            raise unittest.SkipTest(reason)
        return super().start(case)

    def isolation_named(self, name: str) -> Isolation:
        """Return the isolation of this name, with ranks below the launched processes."""
        return dataclasses.replace(
            isolation_named(name), make_launcher=self._attach, can_debug=False, starts_ranks=False, host=self._host
        )

    def close(self) -> None:
        """Let the other launched processes end, with this one's exit code."""
        if self._launcher is not None:
            # When the first of them ends with a failure, torchrun stops the others. This one is about to end itself.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._launcher.exit_code = self._exit_code
        super().close()

    def _unfit(self, case: Case) -> str:
        name = self._rank_info.launcher
        if case.world_size != self._rank_info.size:
            return f"world_size = {case.world_size}; {name} has started a world of {self._rank_info.size}"
        if isolation_named(case.isolation).in_process:
            return f'isolation = "{case.isolation}"; {name} has started a process for each rank'
        if (nodes := case.settings.get("nodes", 1)) > 1:
            return f"nodes = {nodes}; {name} has started the ranks where they are"
        return ""

    def _attach(self, run: RunContext) -> Launcher:
        if self._launcher is not None:
            raise LaunchError(
                "The attached ranks are unusable: one could not be stopped, or does not receive messages.\n"
                "A world without one of its ranks cannot run a case.\n"
                "See the first case that failed."
            )
        self._launcher = AttachedLauncher(self._rank_info, run, self._host, tuple(self._context.items), self.log_line)
        return self._launcher


@dataclasses.dataclass(eq=False, slots=True)
class Follower:
    """The plugin of every other process. `exit_code` is rank 0's; None until rank 0 sends it."""

    config: pytest.Config
    rank_info: RankInfo
    context: PytestRankContext
    loader: Loader
    exit_code: int | None = None
    undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Leave the terminal and the cache to rank 0's process."""
        if (cache := getattr(self.config, "cache", None)) is not None:
            cache.set = lambda key, value: None
            self.undo.callback(delattr, cache, "set")
        # Python warns of a file that is never closed, which `filterwarnings = error` makes a failure.
        nothing = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.config.add_cleanup(nothing.close)
        self.undo.callback(write_terminal_to, self.config, write_terminal_to(self.config, nothing))

    def pytest_internalerror(self, excrepr: object) -> None:
        """Print an internal error, because it ends this process."""
        print(f"rank {self.rank_info.rank}: {excrepr}", file=sys.__stderr__)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """Make a rank for every case that rank 0 asks for."""
        if self.config.option.collectonly:
            return True
        if not self.context.items and not self.context.collection_errors:
            # No test here is distributed: the user runs tests of another kind under torchrun.
            self.undo.close()
            return None
        try:
            self.exit_code = serve(self.rank_info, self.context, self.loader, tuple(self.context.items))
        except LaunchError as error:
            print(f"rank {self.rank_info.rank}: {error}", file=sys.__stderr__)
            self.exit_code = int(pytest.ExitCode.INTERRUPTED)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit code to rank 0's."""
        ours = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED)
        if self.exit_code is not None and exitstatus in ours:
            session.exitstatus = self.exit_code
