"""The engine on rank 0 of a world that torchrun has made: runner and rank in one process."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager

from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank import AttachedRank
from dist_testing.attach.rank_info import RankInfo
from dist_testing.budget import Budget
from dist_testing.case import Case, CaseResult
from dist_testing.engine.case_events import CaseEvents
from dist_testing.engine.engine import Engine
from dist_testing.engine.run_directory import RunDirectory
from dist_testing.engine.running_world import RunningCase
from dist_testing.errors import InterruptedRunError, LaunchError
from dist_testing.gpus.world import WorldGpus
from dist_testing.launch.launcher import Launcher
from dist_testing.rank.bootstrap import RankContext
from dist_testing.spec import Spec

__all__ = ["AttachedEngine"]

# For the main thread to come back when the case is over for everybody else. Seconds.
_RETURN_LIMIT_S = 5.0


class AttachedEngine(Engine):
    """Runs cases on ranks that exist. A case that needs other ranks than those is skipped.

    Attributes:
        exit_code: What the other ranks are told to end with.
    """

    def __init__(
        self,
        spec: Spec,
        budget: Budget,
        context: RankContext,
        rank_info: RankInfo,
        as_rank: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(spec, budget, context, None)
        self.exit_code = 1
        self._rank_info = rank_info
        self._as_rank = as_rank
        self._joined: AttachedLauncher | None = None
        self._rank: AttachedRank | None = None
        # Descriptor 2 is the rank's, while it has a part in a case.
        self._stderr = os.dup(2)

    @property
    def over(self) -> str:
        """Why no further case can be run; "" while they can."""
        if self._joined is not None and self._joined.gone:
            return self._joined.exit_message().partition("\n")[0]
        return "torchrun has stopped the run" if self._rank is not None and self._rank.is_terminated else ""

    def start(self, case: Case) -> RunningCase:
        """As always.

        Raises:
            SkipTest: If the case asks for other ranks than there are.
            LaunchError: If they cannot be had.
        """
        if reason := self._unfit(case):
            raise unittest.SkipTest(reason)
        return super().start(dataclasses.replace(case, isolation="fork", pool=""))

    def finish(self, running: RunningCase) -> CaseResult:
        """Take rank 0's part here, in the main thread, while another one watches all ranks."""
        results: list[CaseResult | BaseException] = []
        is_back = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(running, results, is_back), name="dist_testing-runner", daemon=True
        )
        watcher.start()
        assert self._rank is not None
        try:
            self._rank.take_part_once()
        finally:
            is_back.set()
            watcher.join()
        (result,) = results
        if isinstance(result, BaseException):
            raise result
        assert self._joined is not None
        if self._rank.is_terminated and not self._joined.gone:
            # Whatever the ranks said of each other, this is why.
            raise InterruptedRunError("torchrun has stopped the run")
        return result

    def abandon(self, running: RunningCase) -> None:
        """End a case that nobody will ask about any more."""
        assert self._rank is not None
        self._rank.take_part_once(gives_up=True)
        super().abandon(running)

    def close(self) -> None:
        """Let the other ranks end, with this one's exit code."""
        if self._joined is not None:
            # When the first of them ends with a failure, torchrun stops the others. This one is about to end itself.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._joined.dismiss(self.exit_code)
        super().close()
        if self._joined is not None:
            self._joined.own_end.close()
        os.close(self._stderr)

    def _watch(self, running: RunningCase, results: list[CaseResult | BaseException], is_back: threading.Event) -> None:
        try:
            results.append(super().finish(running))
        except BaseException as error:
            results.append(error)
            if not is_back.wait(_RETURN_LIMIT_S):
                # Stuck in native code that waits for no connection. Nobody else can end this process in order.
                stacks = "\n".join(f"rank {rank}:\n{text}" for rank, text in running.world.supervisor.stacks.items())
                os.write(self._stderr, f"{running.case.name}: {error}\n{stacks}\n".encode(errors="replace"))
                os._exit(1)

    def _take_gpus(self, case: Case, limit_s: float, events: CaseEvents) -> WorldGpus | None:
        # The ranks have what torchrun, or a scheduler before it, gave them.
        return None

    def _unfit(self, case: Case) -> str:
        if case.world_size != self._rank_info.size:
            return f"world_size = {case.world_size}; torchrun has made a world of {self._rank_info.size}"
        if case.isolation in ("spawn", "thread"):
            return f'isolation = "{case.isolation}"; torchrun has made the ranks, as processes that stay'
        if case.expected_exits:
            return "expected_exits: a rank that ends would be the end of the world that torchrun has made"
        return ""

    def _make_launcher(self, directory: RunDirectory) -> Launcher:
        if self._rank is not None:
            raise LaunchError(
                "The ranks that torchrun has made have been given up: one could not be stopped, or not be told more.\n"
                "A world that lacks a rank can run no case.\n"
                "See the first case that failed."
            )
        self._joined = AttachedLauncher(self._rank_info, directory)
        self._rank = AttachedRank(self._joined.own_end, self._context, self._as_rank)
        return self._joined
