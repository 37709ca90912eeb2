"""What a case was in when the run was stopped: who stops one that hangs wants to know where it is."""

from __future__ import annotations

import time

from dist_testing.outcomes import Cause, Status, Verdict
from dist_testing.runner.case import Case, CaseResult
from dist_testing.runner.report import failure_report
from dist_testing.runner.running_world import RunningWorld

__all__ = ["interruption_report"]


def interruption_report(case: Case, world: RunningWorld, *, started_s: float, limit_s: float, target: str) -> str:
    """Kill the ranks, and tell where each of them was and what it has printed.

    Args:
        case: The case that the run was in.
        world: Its ranks.
        started_s: When they were asked for, on the monotonic clock.
        limit_s: How long the case was allowed to run, in seconds.
        target: Label of the target, "" outside Bazel.

    Raises:
        LaunchError: If the ranks could not be got rid of.
    """
    duration_s = time.monotonic() - started_s
    supervisor = world.supervisor
    supervisor.abort(ask_where=True)
    outcomes = tuple(record.outcome() for record in supervisor.records)
    result = CaseResult(
        case=case,
        verdict=Verdict(
            Status.FAILED,
            Cause.INTERRUPTED,
            f"the run was stopped after {duration_s:.1f} s of this case",
            failing=tuple(outcome.rank for outcome in outcomes if outcome.text),
        ),
        outcomes=outcomes,
        started_s=started_s,
        duration_s=duration_s,
        limit_s=limit_s,
        logs={rank: world.log_tail(rank) for rank in range(world.size)},
        stacks=supervisor.stacks,
    )
    return failure_report(result, target=target)
