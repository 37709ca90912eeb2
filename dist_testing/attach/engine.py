"""The engine on rank 0's process of an attached world: it makes the ranks below the processes that were launched."""

from __future__ import annotations

import dataclasses
import signal
import unittest
from collections.abc import Callable, Sequence

from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank_info import RankInfo, reachable_host
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.layout import LOOPBACK
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import Isolation, isolation_named
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.process.lifetime import check_platform
from dist_testing.core.process.messages import Loader
from dist_testing.core.rank.bootstrap import RankContext


class AttachedEngine(Engine):
    """Runs cases on one rank below each launched process. It skips a case that needs others.

    Attributes:
        exit_code: Exit code that the other launched processes will end with.
    """

    def __init__(
        self,
        spec: Spec,
        budget: Budget,
        context: RankContext,
        loader: Loader,
        rank_info: RankInfo,
        collected: Callable[[], Sequence[str]],
    ) -> None:
        """`collected` returns the names of the tests, when they have been collected. The rest is as for `Engine`."""
        super().__init__(spec, budget, context, loader)
        self.exit_code = 1
        self._rank_info = rank_info
        self._collected = collected
        self._host = ""
        self._launcher: AttachedLauncher | None = None

    @property
    def over(self) -> str:
        """Reason why no further case can run; "" if they can."""
        if self._launcher is not None and self._launcher.gone:
            return self._launcher.exit_message().partition("\n")[0]
        return ""

    def start(self, case: Case) -> RunningCase:
        """Start a case.

        Raises:
            SkipTest: If the case needs other ranks than those that were launched.
            LaunchError: If a launched process has ended.
        """
        if reason := self._unfit(case):
            raise unittest.SkipTest(reason)
        return super().start(case)

    def isolation_named(self, name: str) -> Isolation:
        """Return the isolation of this name, with ranks below the launched processes.

        Raises:
            LaunchError: If ranks of other nodes cannot reach this one.
        """
        if not self._host:
            self._host = reachable_host(self._rank_info) if self._rank_info.has_other_nodes else LOOPBACK
        return dataclasses.replace(
            isolation_named(name), make_launcher=self._attach, can_debug=False, starts_ranks=False, host=self._host
        )

    def close(self) -> None:
        """Let the other launched processes end, with this one's exit code."""
        if self._launcher is not None:
            # When the first of them ends with a failure, torchrun stops the others. This one is about to end itself.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._launcher.dismiss(self.exit_code)
        super().close()

    def _unfit(self, case: Case) -> str:
        name = self._rank_info.launcher
        if case.world_size != self._rank_info.size:
            return f"world_size = {case.world_size}; {name} has started a world of {self._rank_info.size}"
        if isolation_named(case.isolation).in_process:
            return f'isolation = "{case.isolation}"; {name} has started a process for each rank'
        if case.nodes > 1:
            return f"nodes = {case.nodes}; {name} has started the ranks where they are"
        return ""

    def _attach(self, run: RunContext) -> Launcher:
        check_platform()
        if self._launcher is not None:
            raise LaunchError(
                "The attached ranks are unusable: one could not be stopped, or does not receive messages.\n"
                "A world without one of its ranks cannot run a case.\n"
                "See the first case that failed."
            )
        self._launcher = AttachedLauncher(self._rank_info, run, self._host, self._collected(), self.tell)
        return self._launcher
