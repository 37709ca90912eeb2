"""Runs ranks as threads of the runner's own process, for test classes that ask for it.

Such a rank reports in the same way as a rank with a process of its own, and its reports make the same outcomes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dist_testing.engine.rank_record import WORST_LAST, worst_of
from dist_testing.engine.thread_stacks import waiting_for_skipped
from dist_testing.error_text import summarise
from dist_testing.events.event import DIGITS, Phase
from dist_testing.outcomes import GOOD, Kind, RankOutcome
from dist_testing.process.board import ENTRIES
from dist_testing.process.rank_messages import RankMessage, RankReport
from dist_testing.rank.bootstrap import FAILED_EXIT_CODE
from dist_testing.rank.reporter import Reporter
from dist_testing.threaded.world import fail_world, run_on_threads

__all__ = ["ThreadBody", "ThreadsEnded", "run_ranks"]

# Runs one rank: its number, its reporter, and the case's limit in seconds. An exception is the rank's outcome.
ThreadBody = Callable[[int, Reporter, float], None]

# Of a rank that had not ended when another failed; in the words of `RankOutcome.describe`.
_LEFT_BEHIND = "was left behind: a thread cannot be stopped"

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True


@dataclass(frozen=True, slots=True)
class ThreadsEnded:
    """How the ranks of a world of threads ended.

    Attributes:
        outcomes: One per rank, by rank.
        stacks: Rank to its stack, of ranks that had not ended.
        phases: Rank to what it did.
    """

    outcomes: tuple[RankOutcome, ...]
    stacks: Mapping[int, str]
    phases: Mapping[int, tuple[Phase, ...]]


class _RankFailedError(Exception):
    """Tells the world that a rank has failed; the rank has reported its failure before."""


class _Account:
    """Takes the messages and phases of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.phase = "start"
        self.outcome: RankOutcome | None = None
        self._changes = deque([(self.phase, time.monotonic())], maxlen=ENTRIES)

    def write(self, rank: int, phase: str) -> None:
        del rank
        self.phase = phase or self.phase
        self._changes.append((phase, time.monotonic()))

    def phases(self, end_s: float) -> tuple[Phase, ...]:
        """What the rank did until `end_s`."""
        # A rank that was left behind may go on to write.
        changes = [(name, round(at_s, DIGITS)) for name, at_s in self._changes.copy() if at_s <= end_s]
        ends = [at_s for _, at_s in changes[1:]] + [round(end_s, DIGITS)]
        return tuple(Phase(name, at_s, end) for (name, at_s), end in zip(changes, ends, strict=True) if name)

    def send(self, message: RankMessage) -> None:
        if isinstance(message, RankReport):
            outcome = RankOutcome.of(self.rank, message.kind, time.monotonic(), message.phase, message)
            self.outcome = worst_of(self.outcome, outcome, lambda outcome: WORST_LAST.index(outcome.kind))


def run_ranks(world_size: int, body: ThreadBody, *, limit_s: float) -> ThreadsEnded:
    """Run a world of threads to its end, or to its deadline.

    A thread cannot be killed. One that has not ended by then is left alone; it is a daemon, so the process can end.

    Args:
        world_size: Ranks.
        body: Runs one of them. It makes its process groups itself.
        limit_s: Seconds that all may take together.
    """
    deadline_s = time.monotonic() + limit_s
    accounts = [_Account(rank) for rank in range(world_size)]

    def run(rank: int) -> None:
        account = accounts[rank]
        reporter = Reporter(account, account, rank, fail_world)
        try:
            body(rank, reporter, limit_s)
        except BaseException as error:
            reporter.ended_by(_without_our_frames(error))
        if reporter.is_forked:
            # A child that has outrun the test.
            os._exit(FAILED_EXIT_CODE if reporter.failed else 0)
        if reporter.failed:
            raise _RankFailedError
        reporter.case_over()

    ended = run_on_threads(run, world_size, timeout_s=limit_s, init=False)
    seen_s = min(time.monotonic(), deadline_s)
    has_failed = any(account.outcome is not None and account.outcome.kind not in GOOD for account in accounts)
    outcomes = []
    for account, rank in zip(accounts, ended, strict=True):
        told = account.outcome
        if told is None and rank.error is not None:
            told = RankOutcome(account.rank, Kind.NEVER_STARTED, summary=summarise(rank.error), text=str(rank.error))
        elif told is None or (rank.stack and told.kind in GOOD):
            told = RankOutcome(account.rank, Kind.HUNG, seen_s, account.phase)
            if has_failed:
                told = dataclasses.replace(told, kind=Kind.STOPPED, summary=_LEFT_BEHIND)
        outcomes.append(told)
    return ThreadsEnded(
        waiting_for_skipped(outcomes),
        {rank.rank: rank.stack for rank in ended if rank.stack},
        {account.rank: account.phases(time.monotonic()) for account in accounts},
    )


def _without_our_frames(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the test, if it gets that far."""
    traceback = error.__traceback__
    while traceback is not None and "__unittest" in traceback.tb_frame.f_globals:
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)
