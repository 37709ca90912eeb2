"""Figures of the benches: statistics, ratios, aligned tables, and whether the machine was quiet enough for them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Largest share of the machine's CPU time for other processes. Above it, medians of short cases no longer compare.
LARGEST_SHARE = 0.1


class BenchError(Exception):
    """A measured program did something else than it should, so there is nothing to measure."""


class Summary(NamedTuple):
    """The statistics of a series, in its unit; the machine's noise disturbed the smallest measurement least."""

    median: float
    smallest: float
    largest: float


def summarise(values: Sequence[float]) -> Summary:
    """Summarise a series of at least one value."""
    return Summary(statistics.median(values), min(values), max(values))


def ratio_line(name: str, one: Sequence[float], other: Sequence[float]) -> str:
    """Return a line with the first series over the second: by medians, by minima, and the spread of the ratio.

    The spread is the middle half of the ratios of single rounds. Measurements with the same index belong to one round;
    a longer series is cut. Each series has at least one value.
    """
    rounds = min(len(one), len(other))
    first, second = one[:rounds], other[:rounds]
    ratios = [mine / its for mine, its in zip(first, second, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if rounds > 1 else ratios * 3
    medians = statistics.median(first) / statistics.median(second)
    spread = f"middle half of {rounds} rounds {low:.2f} to {high:.2f}"
    return f"{name}: {medians:.2f} (minima {min(first) / min(second):.2f}, {spread})\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table: the first column to the left, the others to the right; it ends with a newline."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    text = ""
    for first, *others in (header, *rows):
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text += "  ".join(cells).rstrip() + "\n"
    return text


@dataclass(frozen=True, slots=True)
class Moment:
    """The CPU time that has passed at one moment, in seconds."""

    total_s: float  # of all CPUs, idle time included
    busy_s: float  # of all CPUs, without idle time; with that of a hypervisor
    own_s: float  # of this process and its children that have ended

    def others_until(self, later: Moment) -> float:
        """Return the share of the CPU time that other processes have used between this moment and a later one."""
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        # The kernel counts in ticks, so a short quiet period can come out below zero.
        return min(1.0, max(0.0, others_s / (later.total_s - self.total_s)))


def now() -> Moment:
    """Return the present moment. All children of the bench that matter must have ended, and been waited for."""
    # Here, because benches that do not ask run without the library's packages.
    import psutil

    times = psutil.cpu_times()
    # Guests are in the user's time.
    total_s = sum(times) - times.guest - times.guest_nice
    return Moment(total_s, total_s - times.idle - times.iowait, sum(psutil.Process().cpu_times()[:4]))


def quiet_line(share: float) -> str:
    """Return a line for the user about the share of other work."""
    if share <= LARGEST_SHARE:
        return f"Other work on this machine: {share:.0%} of its CPU time.\n"
    return (
        f"THESE FIGURES DO NOT COUNT: other work took {share:.0%} of the machine's CPU time "
        f"(limit {LARGEST_SHARE:.0%}).\nRepeat the bench on a quiet machine; now only the ratios are of any use.\n"
    )
