"""Reports where a case was when the run was stopped: a user who stops a hanging run wants to know that."""

from __future__ import annotations

import time

from dist_testing.case import CaseResult
from dist_testing.engine.report import failure_report
from dist_testing.engine.running_case import RunningCase
from dist_testing.outcomes import Cause, Status, Verdict

__all__ = ["interruption_report"]


def interruption_report(running: RunningCase, target: str) -> str:
    """Kill the ranks, and return a report of where each one was and what it has printed.

    Args:
        running: The case that was running.
        target: Label of the target; "" outside Bazel.

    Raises:
        LaunchError: If the ranks could not be killed.
    """
    duration_s = time.monotonic() - running.started_s
    world = running.world
    supervisor = world.supervisor
    supervisor.abort(ask_where=True)
    outcomes = tuple(record.outcome() for record in supervisor.records)
    result = CaseResult(
        case=running.case,
        verdict=Verdict(
            Status.FAILED,
            Cause.INTERRUPTED,
            f"the run was stopped after {duration_s:.1f} s of this case",
            failing=tuple(outcome.rank for outcome in outcomes if outcome.text),
        ),
        outcomes=outcomes,
        started_s=running.started_s,
        duration_s=duration_s,
        limit_s=running.limit_s,
        logs={rank: world.log_tail(rank) for rank in range(world.size)},
        stacks=supervisor.stacks,
    )
    return failure_report(result, target=target)
