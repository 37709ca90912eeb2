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
    """The machine may have been slower in the other rounds."""
    assert paired_ratio([3.0], [1.0, 100.0, 100.0]) == {
        "medians": 3.0,
        "minima": 3.0,
        "low": 3.0,
        "high": 3.0,
        "rounds": 1,
    }


def test_a_ratio_without_rounds_has_no_spread_in_its_line() -> None:
    """Other benches compare two summaries."""
    assert ratio_lines({"a / b": {"medians": 0.5, "minima": 0.25}}) == "a / b: 0.50 (minima 0.25)\n"
    assert "middle half of 1 rounds 2.00 to 2.00" in ratio_lines({"a / b": paired_ratio([2.0], [1.0])})


@pytest.mark.parametrize(
    ("busy_s", "own_s", "share", "counts"),
    [(40.0, 40.0, 0.0, True), (50.0, 40.0, 0.1, True), (51.0, 40.0, 0.11, False), (100.0, 0.0, 1.0, False)],
)
def test_other_work_is_what_the_bench_has_not_done(busy_s: float, own_s: float, share: float, counts: bool) -> None:
    """The load average would count the bench's own ranks."""
    start = quiet.Moment(1000.0, 500.0, 7.0)
    others = start.until(quiet.Moment(1100.0, 500.0 + busy_s, 7.0 + own_s))
    assert others.share == pytest.approx(share)
    assert others.to_json()["counts"] is counts
    assert ("DO NOT COUNT" in others.line()) is not counts


def test_ticks_never_make_work_negative() -> None:
    """The kernel counts a process's time more exactly than that of a CPU."""
    start = quiet.Moment(10.0, 5.0, 0.0)
    assert start.until(quiet.Moment(11.0, 5.5, 0.6)).share == 0.0
    assert start.until(start).share == 0.0


def test_the_machine_tells_its_moment() -> None:
    """Idle time and waits for disks are no work; steal is work of others."""
    assert quiet.now().total_s > quiet.now().own_s > 0
    moment = quiet.now("cpu  100 200 300 4000 500 600 700 800 5 6\ncpu0 1 2 3\n")
    assert moment.total_s == pytest.approx(72.0)
    assert moment.busy_s == pytest.approx(27.0)


@pytest.mark.parametrize("stat", ["", "intr 1 2 3\n", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_a_stat_of_another_form_is_refused(stat: str) -> None:
    """A wrong judgement would be worse than none."""
    with pytest.raises(ValueError, match=r"/proc/stat|invalid literal"):
        quiet.now(stat)
