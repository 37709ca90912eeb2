"""Runs ranks as threads of the runner, for test classes that ask for it.

Such a rank reports like a rank with its own process, and its reports give the same outcomes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial

from dist_testing.core.engine.case_events import CaseEvents
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.rank_record import WORST_LAST, worst_of
from dist_testing.core.engine.running_case import with_operation
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.outcomes import GOOD, Kind, RankOutcome, verdict
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import RankMessage, RankReport
from dist_testing.core.rank.reporter import Reporter
from dist_testing.threaded.shared_process import waiting_for_skipped
from dist_testing.threaded.thread_world import fail_world, report_end, run_on_threads

# unittest omits the frames of modules with this mark from its tracebacks.
__unittest = True


# Runs one rank: its number, its reporter, and the case's limit in seconds. An exception is the rank's outcome.
ThreadBody = Callable[[int, Reporter, float], None]


def run_here(engine: Engine, case: Case, body: ThreadBody) -> CaseResult:
    """Run a case on threads of this process to its end, or to its deadline, and judge it.

    `body` runs one rank, and makes its own process groups. A thread cannot be killed: one that runs past the deadline
    goes on; it is a daemon, so the process can end.
    """
    limit_s = engine.limit_s(case)
    events = CaseEvents(engine.events, case)
    started_s = time.monotonic()
    # In memory of this process alone. Never closed, because a thread that is left behind writes on it.
    board = PhaseBoard(-1, case.world_size)
    for rank in range(case.world_size):
        board.write(rank, "start")
    with events.ending_on_error():
        outcomes, stacks = _run_ranks(board, case.world_size, body, limit_s)
    now_s = time.monotonic()
    events.over_on_threads({rank: board.phases(rank, 0, started_s, now_s)[0] for rank in range(case.world_size)})
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
    board: PhaseBoard, world_size: int, body: ThreadBody, limit_s: float
) -> tuple[tuple[RankOutcome, ...], dict[int, str]]:
    """Return the outcomes, and the stacks of ranks that still run, by rank."""
    deadline_s = time.monotonic() + limit_s
    reported: dict[int, RankOutcome] = {}

    def take(rank: int, message: RankMessage) -> None:
        if isinstance(message, RankReport):
            outcome = RankOutcome.of(rank, message.kind, time.monotonic(), message.phase, message)
            reported[rank] = worst_of(reported.get(rank), outcome, lambda outcome: WORST_LAST.index(outcome.kind))

    def run(rank: int) -> None:
        # No message limits a text.
        reporter = Reporter(partial(take, rank), board.write, rank, fail_world, fit=str)
        report_end(lambda: body(rank, reporter, limit_s), reporter)
        reporter.case_over()

    ended = run_on_threads(run, world_size, timeout_s=limit_s)
    seen_s = min(time.monotonic(), deadline_s)
    # A rank that is still running may report more.
    known = reported.copy()
    has_failed = any(outcome.kind not in GOOD for outcome in known.values())
    outcomes = []
    for rank, (error, stack) in enumerate(ended):
        told = known.get(rank)
        if told is None and error is not None:
            told = RankOutcome(rank, Kind.NEVER_STARTED, summary=summarise(error), text=str(error))
        elif told is None or (stack and told.kind in GOOD):
            told = RankOutcome(rank, Kind.HUNG, seen_s, board.read(rank))
            if has_failed:
                told = dataclasses.replace(
                    told, kind=Kind.STOPPED, summary="was left behind: a thread cannot be stopped"
                )
        outcomes.append(told)
    stacks = {rank: stack for rank, (_, stack) in enumerate(ended) if stack}
    judged = [with_operation(outcome, stacks.get(outcome.rank, "")) for outcome in waiting_for_skipped(outcomes)]
    return tuple(judged), stacks
