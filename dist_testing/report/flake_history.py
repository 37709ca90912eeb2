"""Draws how the rate of a flaky case has changed over the invocations of a history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dist_testing.report.facts import utc
from dist_testing.report.flakes import Flake, Vote
from dist_testing.report.markup import Markup, tag
from dist_testing.report.pictures import picture
from dist_testing.report.rates import wilson
from dist_testing.report.words import count_of, percent

# Points of one picture: invocations that follow each other are put together if there are more.
_MAX_POINTS = 40
# Fewer invocations are no history.
_LEAST_INVOCATIONS = 3
_WIDTH, _HEIGHT, _LEFT, _TOP = 960, 78, 46, 8
# A picture of rates below this looks alike, so that 1 % does not look like a disaster.
_LEAST_SCALE = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """The votes of one invocation, or of a few that follow each other.

    Attributes:
        first: Position of the first invocation in time.
        last: Position of the last one.
        runs: Number of runs.
        failures: Number of failures among them.
    """

    first: int
    last: int
    runs: int
    failures: int


def history(given: Iterable[Vote], flake: Flake) -> list[Point]:
    """Return how often a case failed over the invocations, the oldest first; empty if too few have run it."""
    by_order: dict[int, list[bool]] = defaultdict(list)
    for vote in given:
        if vote.key == flake.key and not vote.is_machine:
            by_order[vote.order].append(bool(vote.kind))
    orders = sorted(by_order)
    if len(orders) < _LEAST_INVOCATIONS:
        return []
    each = -(-len(orders) // _MAX_POINTS)
    points = []
    for start in range(0, len(orders), each):
        group = orders[start : start + each]
        failed = [vote for order in group for vote in by_order[order]]
        points.append(Point(group[0], group[-1], len(failed), sum(failed)))
    return points


def history_picture(points: Sequence[Point], times: Sequence[float | None]) -> Markup:
    """Draw rates with their 95 % intervals.

    Args:
        points: The rates, the oldest first.
        times: Time of day of each invocation in the order of time, in seconds since 1970; None if unknown.
    """
    intervals = [wilson(point.failures, point.runs) for point in points]
    scale = max(_LEAST_SCALE, *(high for _, high in intervals))
    step = (_WIDTH - _LEFT) / len(points)

    def y(rate: float) -> str:
        return f"{_TOP + (_HEIGHT - 2 * _TOP) * (1 - rate / scale):.1f}"

    drawn = [tag("line", x1=str(_LEFT), x2=str(_WIDTH), y1=y(rate), y2=y(rate), class_="grid") for rate in (0.0, scale)]
    drawn += [
        tag(
            "text",
            percent(rate) if rate else "0",
            x=str(_LEFT - 6),
            y=y(rate),
            dy="4",
            text_anchor="end",
            class_="axis",
        )
        for rate in (0.0, scale)
    ]
    for number, (point, (low, high)) in enumerate(zip(points, intervals, strict=True)):
        at = f"{_LEFT + step * (number + 0.5):.1f}"
        rate = point.failures / point.runs
        words = f"{_when(point, times)}: {count_of(point.failures)} of {count_of(point.runs)} failed, "
        title = tag("title", f"{words}{percent(low)} to {percent(high)}")
        drawn.append(
            tag(
                "g",
                title,
                tag("line", x1=at, x2=at, y1=y(low), y2=y(high), class_="interval"),
                tag("circle", cx=at, cy=y(rate), r="3", class_="rate" if point.failures else "rate none"),
            )
        )
    label = f"rate of failure over {len(points)} points in time, from {_when(points[0], times)} on"
    return picture(_WIDTH, _HEIGHT, label, *drawn, class_="history")


def _when(point: Point, times: Sequence[float | None]) -> str:
    found = [times[order] for order in (point.first, point.last) if order < len(times)]
    known = [utc(time) for time in found if time is not None]
    if not known:
        return f"invocation {point.first + 1}"
    return known[0] if len(known) < 2 or known[0] == known[-1] else f"{known[0]} to {known[-1]}"
