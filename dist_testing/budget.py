"""One time budget: `TEST_TIMEOUT` minus a reserve, shared by the cases of a run.

The runner must end before Bazel's timer: at the timeout Bazel signals every process of the test at once, and what has
not been said by then is lost.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

__all__ = ["LEAST_S", "MAX_TIMEOUT_S", "REPORT_RESERVE_S", "Budget", "TimeShares"]

# Thirty years: no limit, in other words, but one that every clock can add up. Seconds.
MAX_TIMEOUT_S = 10**9
# Kept back for the stacks of a last hung case, the kill, the report and the XML. Seconds.
REPORT_RESERVE_S = 10.0
# A short timeout must not be eaten by the reserve: at most this share of it is kept back.
_RESERVE_SHARE = 0.2
# What is left of a test when the run's time is over, its teardown above all, still has this much. Seconds.
LEAST_S = 1.0
# Of the reserve, which is for the report: what may begin, and run, after the last case should have ended; and when a
# runner that has not come to an end by itself is taken for stuck.
_LATE_SHARE = 0.5
_STUCK_SHARE = 0.75
# But a report takes no less time in a short run: one that is being written is not taken for stuck. With a timeout below
# ten seconds this is after Bazel's timer, and within the grace that Bazel gives a test to end. Seconds.
_REPORT_S = 2.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that the cases of a run may use.

    Attributes:
        end_s: When the last case must have ended, on the monotonic clock; None without a limit.
    """

    end_s: float | None = None

    @classmethod
    def starting_now(cls, total_s: float | None) -> Budget:
        """A budget of `total_s` seconds from now, less the reserve; None for no limit."""
        if total_s is None:
            return cls()
        return cls(time.monotonic() + total_s - min(REPORT_RESERVE_S, _RESERVE_SHARE * total_s))

    @property
    def latest_s(self) -> float:
        """`end_s`, or infinity."""
        return math.inf if self.end_s is None else self.end_s

    def limit_s(self, own_limit_s: float, *, cases_after: int) -> float:
        """How long the next case may run, in seconds; 0 if nothing is left.

        A case with others behind it gets at most half of what is left: however many hang, the next one still has its
        turn, and a case that is merely long is cut only when the whole target is too small for it.

        Args:
            own_limit_s: What the case itself allows.
            cases_after: How many cases wait behind it.
        """
        if self.end_s is None:
            return own_limit_s
        left = max(0.0, self.end_s - time.monotonic())
        return min(own_limit_s, left / 2 if cases_after else left)


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Bazel's time, divided.

    Attributes:
        budget: For the cases.
        late_s: When the last teardown must have ended, on the monotonic clock; infinity without a limit.
        stuck_s: When a runner that has not ended is ended; None without a limit.
    """

    budget: Budget
    late_s: float = math.inf
    stuck_s: float | None = None

    @classmethod
    def starting_now(cls, total_s: float | None) -> TimeShares:
        """Of `total_s` seconds from now; None for no limit."""
        budget = Budget.starting_now(total_s)
        if total_s is None or budget.end_s is None:
            return cls(budget)
        reserve_s = time.monotonic() + total_s - budget.end_s
        stuck_s = budget.end_s + max(_REPORT_S, _STUCK_SHARE * reserve_s)
        return cls(budget, budget.end_s + _LATE_SHARE * reserve_s, stuck_s)

    def case_end_s(self, cases_after: int) -> float:
        """When a part of a case that begins now must have ended.

        Args:
            cases_after: How many cases wait behind this one.
        """
        now_s = time.monotonic()
        return max(
            now_s + self.budget.limit_s(math.inf, cases_after=cases_after),
            min(now_s + LEAST_S, self.late_s),
        )
