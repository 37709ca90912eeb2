"""Ratios with their spread, and the judgement whether the figures of a bench count."""

from __future__ import annotations

import pytest
import quiet
from figures import paired_ratio, ratio_lines


def test_the_spread_is_that_of_single_rounds() -> None:
    """Noise that lasts a whole round changes both series, and no ratio."""
    found = paired_ratio([1.0, 10.0, 2.0, 4.0], [2.0, 20.0, 4.0, 8.0])
    assert found == {"medians": 0.5, "minima": 0.5, "low": 0.5, "high": 0.5, "rounds": 4}
    found = paired_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert (found["low"], found["medians"], found["high"]) == (1.5, 2.0, 2.5)


def test_a_contestant_with_fewer_cases_is_compared_in_its_own_rounds() -> None:
    """The machine may have been slower in the other rounds. A ratio of two summaries has no spread in its line."""
    found = paired_ratio([3.0], [1.0, 100.0, 100.0])
    assert found == {"medians": 3.0, "minima": 3.0, "low": 3.0, "high": 3.0, "rounds": 1}
    assert "middle half of 1 rounds 3.00 to 3.00" in ratio_lines({"a / b": found})
    assert ratio_lines({"a / b": {"medians": 0.5, "minima": 0.25}}) == "a / b: 0.50 (minima 0.25)\n"


@pytest.mark.parametrize(("busy_s", "own_s", "share"), [(40.0, 40.0, 0.0), (50.0, 40.0, 0.1), (40.0, 40.6, 0.0)])
def test_other_work_is_what_the_bench_has_not_done(busy_s: float, own_s: float, share: float) -> None:
    """The load average would count the bench's own ranks. The kernel counts a process more exactly than a CPU."""
    start = quiet.Moment(1000.0, 500.0, 7.0)
    assert start.others_until(quiet.Moment(1100.0, 500.0 + busy_s, 7.0 + own_s)) == pytest.approx(share)
    assert ("DO NOT COUNT" in quiet.line(share + 0.01)) is (share >= 0.1)
    assert quiet.now().total_s > quiet.now().own_s > 0
