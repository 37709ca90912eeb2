#!/usr/bin/env python3
"""Measure ranks that are threads: the library's class and group against torch's.

    python tools/bench/threads.py [--worlds 4,64] [--cases 10] [--collectives 1000] [--quick]

Both run the same test class, each in its own process, which has imported everything before the first turn. They take
turns case by case, so that the machine's noise is the same for both. There are two kinds of cases: `case` is one
all_reduce of four numbers, so its cost is that of the world's start and end; `collective` is one of many collectives in
one case. This program does not judge times; compare the ratios within one run.

torch's class needs the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contest import Contestant, Run, contest
from contestants.trivial import collectives_case
from figures import BenchError, Summary, ratio, ratio_lines, summarise, table
from options import bench_parser, count, counts, parse, run_bench

LIBRARY = Contestant("library, threads", ("-m", "contestants.library_threaded"))
TORCH = Contestant("torch MultiThreadedTestCase", ("-m", "contestants.torch_suite", "threaded"))

US_PER_S = 1e6
# Cases with many collectives in one contest.
LONG_CASES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant's figures for one world size, in microseconds.

    Attributes:
        case_us: Cost of one more case, without the first case unless there is no other.
        first_us: Cost of the first case.
        collective_us: Cost of one collective, in a case with many.
    """

    case_us: Summary
    first_us: float
    collective_us: Summary


def measure(options: argparse.Namespace, *, world_size: int) -> dict[str, Row]:
    """Run one contest.

    Raises:
        BenchError: If a contestant does not run its cases, or a case does not pass.
    """
    # A collective costs more with more ranks, and the case must not take longer.
    collectives = max(options.collectives * 4 // world_size, 1)
    names = [*map(str, range(options.cases)), *[collectives_case(collectives)] * LONG_CASES]
    contestants = [LIBRARY, TORCH] if options.torch else [LIBRARY]
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        runs = contest(dict.fromkeys(contestants, names), world_size=world_size, folder=Path(folder))
    return {name: _row(name, run, options.cases, collectives) for name, run in runs.items()}


def _row(name: str, run: Run, cases: int, collectives: int) -> Row:
    for turn in run.turns:
        if not turn.verdict.get("passed"):
            raise BenchError(f"{name}: case {turn.case} did not pass:\n{turn.verdict.get('text')}")
    costs_us = [US_PER_S * turn.duration_s for turn in run.turns]
    short, long = costs_us[:cases], costs_us[cases:]
    return Row(
        case_us=summarise(short[1:] or short),
        first_us=short[0],
        collective_us=summarise([cost_us / collectives for cost_us in long]),
    )


def ratios(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return the library's figures over torch's; below 1, the library is faster."""
    if TORCH.name not in rows:
        return {}
    ours, torchs = rows[LIBRARY.name], rows[TORCH.name]
    return {
        "library / torch, case": ratio(ours.case_us, torchs.case_us),
        "library / torch, collective": ratio(ours.collective_us, torchs.collective_us),
    }


def world_table(world_size: int, rows: Mapping[str, Row]) -> str:
    """Return the table of one world size, with its ratios."""
    header = [f"world size {world_size}, us", "case", "min", "max", "first", "collective", "min", "max"]
    lines = []
    for name, row in rows.items():
        figures = (*row.case_us.figures, row.first_us, *row.collective_us.figures)
        lines.append([name, *(f"{figure:.0f}" for figure in figures)])
    return table(header, lines) + ratio_lines(ratios(rows))


def main() -> int:
    """Measure and print."""
    options = _options()

    def report() -> str:
        worlds = {}
        for world_size in options.worlds:
            sys.stderr.write(f"world size {world_size} ...\n")
            worlds[world_size] = measure(options, world_size=world_size)
        return "\n".join(world_table(world_size, rows) for world_size, rows in worlds.items())

    return run_bench("threads", report)


def _options() -> argparse.Namespace:
    parser = bench_parser(__doc__, quick=("--worlds=2", "--cases=3", "--collectives=20", "--no-torch"), has_torch=True)
    parser.add_argument("--worlds", type=counts, default=(4, 64), help="world sizes, default 4,64")
    parser.add_argument("--cases", type=count, default=10, help="cases of one collective, default 10")
    parser.add_argument(
        "--collectives",
        type=count,
        default=1000,
        help="collectives in a long case on 4 ranks, default 1000; on more ranks proportionally fewer",
    )
    return parse(parser)


if __name__ == "__main__":
    sys.exit(main())
