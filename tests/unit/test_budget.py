"""The time budget that the cases of a run share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.core.ground import budget
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, REPORT_RESERVE_S, Budget, is_timeout, timeout_in

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)


class Clock:
    """A monotonic clock that stands still until a test moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """Return the current time in seconds, as `time.monotonic` does."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replaces the module's clock."""
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("left_s", "own_s", "cases_after", "limit_s"),
    [
        # The last case may use all of it.
        (50.0, 300.0, 0, 50.0),
        (50.0, 20.0, 0, 20.0),
        # A case that hangs leaves half of it to those after it.
        (80.0, 300.0, 1, 40.0),
        (80.0, 300.0, 50, 40.0),
        (80.0, 30.0, 50, 30.0),
        # No limit is negative.
        (-5.0, 300.0, 0, 0.0),
        (-5.0, 300.0, 1, 0.0),
    ],
)
def test_cases_share_the_remaining_time(
    clock: Clock, left_s: float, own_s: float, cases_after: int, limit_s: float
) -> None:
    """If this fails, a case that hangs takes the time of the cases after it, or the last one ends early."""
    shared = Budget(clock.now_s + left_s + 30.0)
    unlimited = Budget.starting_now(None)
    clock.now_s += 30.0
    assert shared.limit_s(own_s, cases_after=cases_after) == limit_s
    # Outside Bazel a run has no limit.
    assert unlimited.limit_s(own_s, cases_after=cases_after) == own_s


@pytest.mark.parametrize(
    ("left_s", "took_s", "cases_after", "latest_s"),
    [
        # As much time as the next run may need is left of the part of the case.
        (100.0, 20.0, 0, 60.0),
        (100.0, 5.0, 3, 15.0),
        # The last run is not cut short.
        (100.0, 1.0, 0, 90.0),
        (60.0, 1.0, 1, 28.0),
        (30.0, 1.0, 1, 10.0),
    ],
)
def test_runs_of_one_case_leave_time_to_the_others(
    clock: Clock, left_s: float, took_s: float, cases_after: int, latest_s: float
) -> None:
    """If this fails, a case that runs twenty times takes the time of the others, or a good one ends as a hang."""
    shared = Budget(clock.now_s + left_s)
    assert shared.latest_rerun_s(took_s, cases_after=cases_after) == clock.now_s + latest_s
    assert Budget().latest_rerun_s(took_s, cases_after=cases_after) == float("inf")


@SETTINGS
@given(st.floats(1.0, 1e5), st.lists(st.floats(0.01, 1e4), min_size=1, max_size=20))
def test_every_case_gets_time_and_the_reserve_is_kept_however_many_hang(total_s: float, own_s: list[float]) -> None:
    """If this fails, hanging cases keep later ones from running, or the run exceeds Bazel's timeout."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "time", clock)
        shared = Budget.starting_now(total_s)
        for position, own_limit_s in enumerate(own_s):
            limit_s = shared.limit_s(own_limit_s, cases_after=len(own_s) - position - 1)
            assert 0 < limit_s <= own_limit_s
            clock.now_s += limit_s
    reserve_s = min(REPORT_RESERVE_S, 0.2 * total_s)
    assert clock.now_s <= 1000.0 + total_s - reserve_s + 1e-6


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (1, True),
        (0.001, True),
        (MAX_TIMEOUT_S, True),
        (MAX_TIMEOUT_S + 1, False),
        (0, False),
        (-1.0, False),
        (float("nan"), False),
        (True, False),
        ("1", False),
        (None, False),
    ],
)
def test_a_limit_is_a_number_of_seconds_above_zero(value: object, fits: bool) -> None:
    """If this fails, a limit of zero ends every case at once, or a mistyped one is a hang."""
    assert is_timeout(value) is fits
    assert MAX_TIMEOUT_S == 1_000_000_000
    # On the command line, a typing error is no traceback.
    texts = {"2.5": 2.5, "0": None, "soon": None, "nan": None, "1e99": None}
    assert {text: timeout_in(text) for text in texts} == texts


def test_the_last_teardown_and_the_watchdog_come_after_the_cases(clock: Clock) -> None:
    """If this fails, the watchdog ends a runner that still reports, or a teardown takes the report's time."""
    shares = Budget.starting_now(100.0)
    assert (shares.end_s, shares.late_s, shares.stuck_s) == (1090.0, 1095.0, 1097.5)
    short = Budget.starting_now(5.0)
    assert (short.end_s, short.late_s, short.stuck_s) == (1004.0, 1004.5, 1006.0)
    assert (Budget.starting_now(None).late_s, Budget.starting_now(None).stuck_s) == (float("inf"), None)


def test_a_part_of_a_case_gets_the_least_time_while_the_reserve_has_it(clock: Clock) -> None:
    """If this fails, the teardown of the last case has no time, or takes all of the report's."""
    shares = Budget.starting_now(100.0)
    assert shares.case_end_s(0) == 1090.0
    assert shares.case_end_s(1) == 1045.0
    clock.now_s = 1090.0
    assert shares.case_end_s(0) == 1091.0
    clock.now_s = 1094.5
    assert shares.case_end_s(0) == 1095.0
    clock.now_s = 1099.0
    assert shares.case_end_s(0) == 1099.0
