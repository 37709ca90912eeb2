"""Runs ranks as threads of the runner, for test classes that ask for it.

Such a rank reports like a rank with its own process, and its reports give the same outcomes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from dist_testing.core.engine.engine import ThreadBody
from dist_testing.core.engine.rank_record import WORST_LAST, worst_of
from dist_testing.core.engine.stack_dumps import waiting_for_skipped
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.outcomes import GOOD, Kind, RankOutcome
from dist_testing.core.ground.record import DIGITS, Phase
from dist_testing.core.process.board import ENTRIES
from dist_testing.core.process.rank_messages import RankMessage, RankReport
from dist_testing.core.rank.reporter import Reporter
from dist_testing.threaded.world import fail_world, report_end, run_on_threads

# Describes a rank that was still running when another failed, in the style of `RankOutcome.describe`.
_LEFT_BEHIND = "was left behind: a thread cannot be stopped"

# unittest omits the frames of modules with this mark from its tracebacks.
__unittest = True


@dataclass(frozen=True, slots=True)
class ThreadsEnded:
    """How the ranks of a world of threads ended. Ranks that were still running have stacks."""

    outcomes: tuple[RankOutcome, ...]
    stacks: Mapping[int, str]
    phases: Mapping[int, tuple[Phase, ...]]


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
        """Return the phases of the rank until `end_s`."""
        # A rank that is still running may write more.
        changes = [(name, round(at_s, DIGITS)) for name, at_s in self._changes.copy() if at_s <= end_s]
        ends = [at_s for _, at_s in changes[1:]] + [round(end_s, DIGITS)]
        return tuple(Phase(name, at_s, end) for (name, at_s), end in zip(changes, ends, strict=True) if name)

    def send(self, message: RankMessage) -> None:
        if isinstance(message, RankReport):
            outcome = RankOutcome.of(self.rank, message.kind, time.monotonic(), message.phase, message)
            self.outcome = worst_of(self.outcome, outcome, lambda outcome: WORST_LAST.index(outcome.kind))


def run_ranks(world_size: int, body: ThreadBody, *, limit_s: float) -> ThreadsEnded:
    """Run a world of threads to its end, or to its deadline in `limit_s` seconds. `body` makes its own process groups.

    A thread cannot be killed. A thread that runs past the deadline goes on; it is a daemon, so the process can end.
    """
    deadline_s = time.monotonic() + limit_s
    accounts = [_Account(rank) for rank in range(world_size)]

    def run(rank: int) -> None:
        account = accounts[rank]
        # No message limits a text.
        reporter = Reporter(account, account, rank, fail_world, fit=str)
        report_end(lambda: body(rank, reporter, limit_s), reporter, os._exit)
        reporter.case_over()

    ended = run_on_threads(run, world_size, timeout_s=limit_s)
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
