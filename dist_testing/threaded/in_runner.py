"""Runs ranks as threads of the runner, for test classes that ask for it.

Such a rank reports like a rank with its own process, and its reports give the same outcomes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping

from dist_testing.core.engine.case_events import CaseEvents
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.rank_record import WORST_LAST, worst_of
from dist_testing.core.engine.running_case import with_operation
from dist_testing.core.engine.running_world import check_world_size
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.outcomes import GOOD, Kind, RankOutcome, verdict
from dist_testing.core.ground.record import DIGITS, Phase
from dist_testing.core.process.board import ENTRIES
from dist_testing.core.process.rank_messages import RankMessage, RankReport
from dist_testing.core.rank.reporter import Reporter
from dist_testing.threaded.shared_process import waiting_for_skipped
from dist_testing.threaded.thread_world import fail_world, report_end, run_on_threads

# Describes a rank that was still running when another failed, in the style of `RankOutcome.describe`.
_LEFT_BEHIND = "was left behind: a thread cannot be stopped"

# unittest omits the frames of modules with this mark from its tracebacks.
__unittest = True


# Runs one rank: its number, its reporter, and the case's limit in seconds. An exception is the rank's outcome.
ThreadBody = Callable[[int, Reporter, float], None]


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


def run_here(engine: Engine, case: Case, body: ThreadBody) -> CaseResult:
    """Run a case on threads of this process to its end, or to its deadline, and judge it.

    `body` runs one rank, and makes its own process groups. A thread cannot be killed: one that runs past the deadline
    goes on; it is a daemon, so the process can end.

    Raises:
        UsageError: If the world is too large, or no time is left.
    """
    check_world_size(case.name, case.world_size, needs_files=False)
    limit_s = engine.limit_s(case)
    events = CaseEvents(engine.events, case)
    started_s = time.monotonic()
    with events.ending_on_error():
        outcomes, stacks, phases = _run_ranks(case.world_size, body, limit_s)
    events.over_on_threads(phases)
    result = CaseResult(
        case=case,
        verdict=verdict(outcomes, promised=bool(engine.spec.promises(case.world_size))),
        outcomes=outcomes,
        started_s=started_s,
        duration_s=time.monotonic() - started_s,
        limit_s=limit_s,
        stacks=stacks,
    )
    events.judged(result)
    return result


def _run_ranks(
    world_size: int, body: ThreadBody, limit_s: float
) -> tuple[tuple[RankOutcome, ...], Mapping[int, str], Mapping[int, tuple[Phase, ...]]]:
    """Return the outcomes, the stacks of ranks that still run, and the phases of all; the last two by rank."""
    deadline_s = time.monotonic() + limit_s
    accounts = [_Account(rank) for rank in range(world_size)]

    def run(rank: int) -> None:
        account = accounts[rank]
        # No message limits a text.
        reporter = Reporter(account.send, account.write, rank, fail_world, fit=str)
        report_end(lambda: body(rank, reporter, limit_s), reporter)
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
    stacks = {rank.rank: rank.stack for rank in ended if rank.stack}
    return (
        tuple(with_operation(outcome, stacks.get(outcome.rank, "")) for outcome in waiting_for_skipped(outcomes)),
        stacks,
        {account.rank: account.phases(time.monotonic()) for account in accounts},
    )
