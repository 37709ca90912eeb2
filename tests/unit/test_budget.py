"""The time that cases share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing import budget
from dist_testing.budget import REPORT_RESERVE_S, Budget

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """As in `time`."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Takes the place of the module's clock."""
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    return clock


def test_without_a_limit_every_case_has_its_own(clock: Clock) -> None:
    """Outside Bazel nothing ends the run from outside."""
    unlimited = Budget.starting_now(None)
    clock.now_s += 1e6
    assert unlimited.limit_s(300.0, cases_after=99) == 300.0


@pytest.mark.parametrize(
    ("total_s", "usable_s"),
    [(900.0, 890.0), (60.0, 50.0), (50.0, 40.0), (10.0, 8.0), (1.0, 0.8)],
)
def test_the_reserve_is_kept_back_and_leaves_most_of_a_short_timeout(
    clock: Clock, total_s: float, usable_s: float
) -> None:
    """Without the reserve Bazel kills the report; with a fixed one, a short timeout leaves no time for the test."""
    assert Budget.starting_now(total_s).limit_s(1e9, cases_after=0) == pytest.approx(usable_s)
    assert total_s - usable_s <= REPORT_RESERVE_S


def test_the_last_case_may_use_what_is_left(clock: Clock) -> None:
    """Nobody comes after it."""
    shared = Budget(clock.now_s + 80.0)
    clock.now_s += 30.0
    assert shared.limit_s(300.0, cases_after=0) == 50.0
    assert shared.limit_s(20.0, cases_after=0) == 20.0


def test_a_case_with_others_behind_it_gets_half_of_what_is_left(clock: Clock) -> None:
    """If it hangs, the next one still has its turn."""
    shared = Budget(clock.now_s + 80.0)
    assert shared.limit_s(300.0, cases_after=1) == 40.0
    assert shared.limit_s(300.0, cases_after=50) == 40.0
    assert shared.limit_s(30.0, cases_after=50) == 30.0


@pytest.mark.parametrize("cases_after", [0, 1])
def test_an_overdrawn_budget_gives_nothing_and_never_less(clock: Clock, cases_after: int) -> None:
    """A negative limit would be an error where it is used."""
    shared = Budget(clock.now_s - 5.0)
    assert shared.limit_s(300.0, cases_after=cases_after) == 0.0


@SETTINGS
@given(st.floats(1.0, 1e5), st.lists(st.floats(0.01, 1e4), min_size=1, max_size=20))
def test_however_many_cases_hang_each_has_its_turn_and_the_end_is_kept(total_s: float, own_s: list[float]) -> None:
    """One time budget: every case runs, and the run is over before Bazel's timer."""
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
