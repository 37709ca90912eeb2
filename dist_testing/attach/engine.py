"""The engine on rank 0 of an attached world: runner and rank in one process."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import unittest
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager

from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank import AttachedRank
from dist_testing.attach.rank_info import RankInfo, reachable_host
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import InterruptedRunError, LaunchError
from dist_testing.core.ground.layout import LOOPBACK
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import Isolation, isolation_named
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.process.lifetime import check_platform
from dist_testing.core.process.messages import Loader
from dist_testing.core.rank.bootstrap import RankContext

# Limit for the main thread to return after the case is over on the other ranks. Seconds.
_RETURN_LIMIT_S = 5.0


class AttachedEngine(Engine):
    """Runs cases on the ranks that a launcher has started. It skips a case that needs other ranks.

    Attributes:
        exit_code: Exit code that the other ranks will end with.
    """

    def __init__(
        self,
        spec: Spec,
        budget: Budget,
        context: RankContext,
        loader: Loader,
        rank_info: RankInfo,
        as_rank: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(spec, budget, context, loader)
        self.exit_code = 1
        self._rank_info = rank_info
        # Not in the registry: the environment chooses it, never a user.
        self._isolation: Isolation | None = None
        self._as_rank = as_rank
        self._launcher: AttachedLauncher | None = None
        self._rank: AttachedRank | None = None
        # During a case, descriptor 2 belongs to the rank.
        self._stderr = os.dup(2)

    @property
    def over(self) -> str:
        """Reason why no further case can run; "" if they can."""
        if self._launcher is not None and self._launcher.gone:
            return self._launcher.exit_message().partition("\n")[0]
        return self._stopped if self._rank is not None and self._rank.is_terminated else ""

    def start(self, case: Case) -> RunningCase:
        """Start a case on the existing ranks.

        Raises:
            SkipTest: If the case needs other ranks than the existing ones.
            LaunchError: If the ranks cannot run a case any more.
        """
        if reason := self._unfit(case):
            raise unittest.SkipTest(reason)
        return super().start(dataclasses.replace(case, pool=""))

    def isolation_named(self, name: str) -> Isolation:
        """Return the isolation of ranks that exist already, whatever name is asked for.

        Raises:
            LaunchError: If ranks of other nodes cannot reach this one.
        """
        del name
        if self._isolation is None:
            host = reachable_host(self._rank_info) if self._rank_info.has_other_nodes else LOOPBACK
            self._isolation = Isolation(
                "attached", self._attach, can_debug=False, has_exit_codes=False, starts_ranks=False, host=host
            )
        return self._isolation

    def finish(self, running: RunningCase) -> CaseResult:
        """Run rank 0's part in the main thread, while another thread watches all ranks."""
        result: Future[CaseResult] = Future()
        is_back = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(running, result, is_back), name="dist_testing-runner", daemon=True
        )
        watcher.start()
        assert self._rank is not None
        # A launcher that ends all ranks because one has died must not cost the report of the one.
        with self._rank.holding_on():
            try:
                self._rank.take_part_once()
            finally:
                is_back.set()
                watcher.join()
        found = result.result()
        assert self._launcher is not None
        if self._launcher.gone:
            # The run ends now by itself.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif self._rank.is_terminated:
            # This is the cause, whatever the ranks report.
            raise InterruptedRunError(self._stopped)
        return found

    def abandon(self, running: RunningCase) -> None:
        """End a case whose result is not needed."""
        assert self._rank is not None
        self._rank.take_part_once(gives_up=True)
        super().abandon(running)

    def close(self) -> None:
        """Let the other ranks end, with this rank's exit code."""
        if self._launcher is not None:
            # When the first of them ends with a failure, torchrun stops the others. This one is about to end itself.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._launcher.dismiss(self.exit_code)
        super().close()
        if self._launcher is not None:
            self._launcher.own_end.close()
        os.close(self._stderr)

    def _watch(self, running: RunningCase, result: Future[CaseResult], is_back: threading.Event) -> None:
        try:
            result.set_result(super().finish(running))
        except BaseException as error:
            result.set_exception(error)
            if not is_back.wait(_RETURN_LIMIT_S):
                # The main thread is stuck in native code that waits for no connection. Only this thread can end the
                # process with a report.
                stacks = "\n".join(f"rank {rank}:\n{text}" for rank, text in running.world.supervisor.stacks.items())
                headlines = [watcher.headline for watcher in running.world.supervisor.watchers.values()]
                why = "".join(f"The case had to be ended: {headline}.\n" for headline in headlines if headline)
                text = f"{running.case.name}: {error}\n{why}{stacks}\n"
                os.write(self._stderr, text.encode(errors="replace"))
                os._exit(1)

    @property
    def _stopped(self) -> str:
        return f"{self._rank_info.launcher} has stopped the run"

    def _unfit(self, case: Case) -> str:
        name = self._rank_info.launcher
        if case.world_size != self._rank_info.size:
            return f"world_size = {case.world_size}; {name} has started a world of {self._rank_info.size}"
        wanted = isolation_named(case.isolation)
        if wanted.in_process or wanted.fresh_interpreter:
            return f'isolation = "{wanted.name}"; {name} has started the ranks, as processes that stay'
        if case.nodes > 1:
            return f"nodes = {case.nodes}; {name} has started the ranks where they are"
        if case.expected_exits:
            return f"expected_exits: if a rank ends, {name} ends the whole world"
        if "faults" in case.settings:
            return f"faults: {name} has started the ranks, and ends all of them when one ends"
        return ""

    def _attach(self, run: RunContext) -> Launcher:
        check_platform()
        if self._rank is not None:
            raise LaunchError(
                "The attached ranks are unusable: one could not be stopped, or does not receive messages.\n"
                "A world without one of its ranks cannot run a case.\n"
                "See the first case that failed."
            )
        assert self._isolation is not None
        self._launcher = AttachedLauncher(self._rank_info, run, self._isolation.host)
        self._rank = AttachedRank(self._launcher.own_end, run.ranks, self._as_rank, launcher=self._rank_info.launcher)
        return self._launcher
