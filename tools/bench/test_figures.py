"""Ratios with their spread, and the judgement whether the figures of a bench count."""

from __future__ import annotations

import figures
import pytest


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        # Noise that lasts a whole round changes both series, and no ratio.
        ([1.0, 10.0, 2.0, 4.0], [2.0, 20.0, 4.0, 8.0], "0.50 (minima 0.50, middle half of 4 rounds 0.50 to 0.50)"),
        ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], "2.00 (minima 1.00, middle half of 3 rounds 1.50 to 2.50)"),
        # With fewer cases than the other, the machine may have been slower in the other rounds.
        ([3.0], [1.0, 100.0, 100.0], "3.00 (minima 3.00, middle half of 1 rounds 3.00 to 3.00)"),
    ],
)
def test_the_spread_is_that_of_single_rounds(one: list[float], other: list[float], said: str) -> None:
    """Otherwise noise of the machine looks like a change of the library."""
    assert figures.ratio_line("a / b", one, other) == f"a / b: {said}\n"


@pytest.mark.parametrize(("busy_s", "own_s", "share"), [(40.0, 40.0, 0.0), (50.0, 40.0, 0.1), (40.0, 40.6, 0.0)])
def test_other_work_is_what_the_bench_has_not_done(busy_s: float, own_s: float, share: float) -> None:
    """The load average would count the bench's own ranks. The kernel counts a process more exactly than a CPU."""
    start = figures.Moment(1000.0, 500.0, 7.0)
    assert start.others_until(figures.Moment(1100.0, 500.0 + busy_s, 7.0 + own_s)) == pytest.approx(share)
    assert ("DO NOT COUNT" in figures.quiet_line(share + 0.01)) is (share >= 0.1)
    assert figures.now().total_s > figures.now().own_s > 0
