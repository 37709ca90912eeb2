"""Figures of the benches: statistics, aligned tables, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


class BenchError(Exception):
    """A measured program did something else than it should, so there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The statistics of a series of measurements, in the unit of the series.

    Attributes:
        median: The median.
        smallest: The smallest one, which the machine's noise disturbed least.
        largest: The largest one.
    """

    median: float
    smallest: float
    largest: float

    @property
    def figures(self) -> tuple[float, float, float]:
        """Median, smallest and largest, as tables show them."""
        return self.median, self.smallest, self.largest


def summarise(values: Sequence[float]) -> Summary:
    """Summarise a series of at least one value."""
    return Summary(statistics.median(values), min(values), max(values))


def ratio(one: Summary, other: Summary) -> dict[str, float]:
    """Return the first series over the second, by medians and by minima."""
    return {"medians": one.median / other.median, "minima": one.smallest / other.smallest}


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Return the first series over the second, by medians and by minima, with the spread of the ratio.

    The spread is the middle half of the ratios of single rounds: "low" and "high" are its quartiles. Measurements with
    the same index belong to one round; a longer series is cut. Each series has at least one value.
    """
    rounds = min(len(one), len(other))
    first, second = one[:rounds], other[:rounds]
    ratios = [mine / its for mine, its in zip(first, second, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if rounds > 1 else ratios * 3
    return {**ratio(summarise(first), summarise(second)), "low": low, "high": high, "rounds": rounds}


def ratio_lines(ratios: Mapping[str, Mapping[str, float]]) -> str:
    """Return one line for each named ratio."""
    lines = []
    for name, found in ratios.items():
        line = f"{name}: {found['medians']:.2f} (minima {found['minima']:.2f}"
        if "rounds" in found:
            line += f", middle half of {found['rounds']} rounds {found['low']:.2f} to {found['high']:.2f}"
        lines.append(f"{line})\n")
    return "".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table: the first column to the left, the others to the right; it ends with a newline."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "".join(f"{line}\n" for line in _lines([header, *rows], widths))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
