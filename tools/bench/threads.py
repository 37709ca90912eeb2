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
from pathlib import Path
from typing import NamedTuple

from contest import Contestant, contest, require_passes
from contestants.trivial import collectives_case
from figures import ratio_line, summarise, table
from options import bench_parser, count, counts, parse, run_bench

LIBRARY = Contestant("library, threads", ("-m", "contestants.library_threaded"))
TORCH = Contestant("torch MultiThreadedTestCase", ("-m", "contestants.torch_suite", "threaded"))

US_PER_S = 1e6
# Cases with many collectives in one contest.
LONG_CASES = 3


class Row(NamedTuple):
    """A contestant's costs for one world size, in microseconds: of the first case, of later ones, of collectives."""

    first_us: float
    case_us: list[float]
    collective_us: list[float]


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
    require_passes(runs)
    rows = {}
    for name, run in runs.items():
        costs_us = [US_PER_S * turn.duration_s for turn in run.turns]
        short, long = costs_us[: options.cases], costs_us[options.cases :]
        rows[name] = Row(short[0], short[1:] or short, [cost_us / collectives for cost_us in long])
    return rows


def world_table(world_size: int, rows: dict[str, Row]) -> str:
    """Return the table of one world size, with its ratios."""
    header = [f"world size {world_size}, us", "case", "min", "max", "first", "collective", "min", "max"]
    lines = []
    for name, row in rows.items():
        figures = (*summarise(row.case_us), row.first_us, *summarise(row.collective_us))
        lines.append([name, *(f"{figure:.0f}" for figure in figures)])
    text = table(header, lines)
    if torch := rows.get(TORCH.name):
        ours = rows[LIBRARY.name]
        text += ratio_line("library / torch, case", ours.case_us, torch.case_us)
        text += ratio_line("library / torch, collective", ours.collective_us, torch.collective_us)
    return text


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=("--worlds=2", "--cases=3", "--collectives=20", "--no-torch"), has_torch=True)
    parser.add_argument("--worlds", type=counts, default=(4, 64), help="world sizes, default 4,64")
    parser.add_argument("--cases", type=count, default=10, help="cases of one collective, default 10")
    long_help = "collectives in a long case on 4 ranks, default 1000; on more ranks proportionally fewer"
    parser.add_argument("--collectives", type=count, default=1000, help=long_help)
    options = parse(parser)

    def report() -> str:
        tables = []
        for world_size in options.worlds:
            sys.stderr.write(f"world size {world_size} ...\n")
            tables.append(world_table(world_size, measure(options, world_size=world_size)))
        return "\n".join(tables)

    return run_bench("threads", report)


if __name__ == "__main__":
    sys.exit(main())
