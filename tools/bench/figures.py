"""What the benches print and write: aligned tables, statistics, and the facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Summary", "machine_facts", "summarise", "table", "write_json"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a series of measurements, all in the unit of the series.

    Attributes:
        count: How many there were.
        median: The middle one.
        smallest: The least disturbed one.
        largest: The most disturbed one.
    """

    count: int
    median: float
    smallest: float
    largest: float


def summarise(values: Sequence[float]) -> Summary:
    """Summarise a series of at least one value."""
    return Summary(len(values), statistics.median(values), min(values), max(values))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table: the first column to the left, the others to the right; ends with a newline."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "".join(f"{line}\n" for line in _lines([header, *rows], widths))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def machine_facts() -> dict[str, Any]:
    """What a figure depends on and can be told of a machine without saying which one it is."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report for later comparisons; summaries become objects."""
    text = json.dumps(report, indent=2, sort_keys=True, default=asdict)
    path.write_text(text + "\n", encoding="utf-8")
