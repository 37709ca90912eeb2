"""The time budget of a run: `TEST_TIMEOUT` minus a reserve, divided among the cases.

The runner has to end before Bazel's timer: at the timeout, Bazel sends a signal to every process of the test at once,
and everything that the runner has not reported by then is lost.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TypeGuard

# Longest time limit, about thirty years. A finite number, so that times can be added on every clock. Seconds.
MAX_TIMEOUT_S = 10**9
# The reserve: time for the stacks of the last hung case, the kill, the report and the XML. Seconds.
REPORT_RESERVE_S = 10.0
# The reserve is at most this share of the timeout, so that a short timeout leaves time for the cases.
_RESERVE_SHARE = 0.2
# Time that the rest of a test, such as its teardown, still gets after the end of the budget. Seconds.
LEAST_S = 1.0
# A case runs again only if it can have so much. Seconds.
_LEAST_RERUN_S = 10.0
# Shares of the reserve: until the first, parts of a test may still start and run after the end of the budget; at the
# second, a runner that has not ended by itself counts as stuck.
_LATE_SHARE = 0.5
_STUCK_SHARE = 0.75
# A runner does not count as stuck earlier than this after the end of the budget, because a short run needs as much time
# for its report as a long one. With a timeout below ten seconds this is after Bazel's timer, but within the time that
# Bazel then gives a test to end. Seconds.
_REPORT_S = 2.0


def is_timeout(value: object) -> TypeGuard[float]:
    """Return whether `value` is a possible limit: a number of seconds above 0, up to MAX_TIMEOUT_S, and not a bool."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= MAX_TIMEOUT_S


def timeout_in(text: str) -> float | None:
    """Return the time limit that a text of the command line gives, in seconds; None if it is not a possible one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_timeout(value) else None


@dataclass(frozen=True, slots=True)
class Budget:
    """Bazel's timeout, divided among cases, last teardown and report. Times are seconds on the monotonic clock.

    Attributes:
        end_s: When the last case has to end; infinity without a limit.
        late_s: When what belongs to the last case has to end, too, such as a teardown in the runner.
        stuck_s: When the watchdog ends a runner that has not ended by itself; None without a limit.
    """

    end_s: float = math.inf
    late_s: float = math.inf
    stuck_s: float | None = None

    @classmethod
    def starting_now(cls, total_s: float | None) -> Budget:
        """Divide a time limit of `total_s` seconds that starts now; None for no limit."""
        if total_s is None:
            return cls()
        reserve_s = min(REPORT_RESERVE_S, _RESERVE_SHARE * total_s)
        end_s = time.monotonic() + total_s - reserve_s
        return cls(end_s, end_s + _LATE_SHARE * reserve_s, end_s + max(_REPORT_S, _STUCK_SHARE * reserve_s))

    def limit_s(self, own_limit_s: float, *, cases_after: int) -> float:
        """Return how long the next case may run, in seconds; 0 if the budget is used up.

        A case gets at most half of the remaining time if more cases follow. So the next case still runs however many
        cases hang, and a long case is cut only if the timeout of the whole target is too short for it.
        """
        left = max(0.0, self.end_s - time.monotonic())
        return min(own_limit_s, left / 2 if cases_after else left)

    def latest_rerun_s(self, took_s: float, *, cases_after: int) -> float:
        """Return until when a case that has just run, in `took_s` seconds, may begin to run again.

        All its runs get what each case after it can have, too. None is cut short, because it would look like a hang.
        """
        now_s = time.monotonic()
        share_s = (self.end_s - now_s) / (cases_after + 1)
        least_s = _LEAST_RERUN_S * (2 if cases_after else 1)
        return min(now_s + share_s - 2 * took_s, self.end_s - least_s)

    def case_end_s(self, cases_after: int) -> float:
        """Return when a part of a case that starts now has to end."""
        now_s = time.monotonic()
        return max(now_s + self.limit_s(math.inf, cases_after=cases_after), min(now_s + LEAST_S, self.late_s))
