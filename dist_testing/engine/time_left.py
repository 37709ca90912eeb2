"""Refuses to start a case for which the run has no time left."""

from __future__ import annotations

from dist_testing.case import Case
from dist_testing.errors import UsageError

__all__ = ["check_time_left"]

# With less time no rank gets as far as its test, and a good test would look like one that hangs. Seconds.
_LEAST_CASE_S = 0.1


def check_time_left(case: Case, limit_s: float) -> None:
    """Refuse a case that has no time left.

    Args:
        case: The case.
        limit_s: Its share of the run's time, in seconds.

    Raises:
        UsageError: If that is less than a rank needs to start, and less than the case's own limit.
    """
    if limit_s < min(_LEAST_CASE_S, case.timeout_s):
        raise UsageError(
            f"{case.name}: not run, because the target's time was over: {limit_s:.1f} s were left for it.\n"
            "The cases before it have used the time; those that hang use the most.\n"
            "Mend them, or give the target a larger timeout or size, or more shards. This test is not to blame."
        )
