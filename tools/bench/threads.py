#!/usr/bin/env python3
"""Measure ranks that are threads: the library's class and group against torch's.

    python tools/bench/threads.py [--worlds 4,64] [--cases 10] [--collectives 1000] [--json FILE] [--quick]

Both run the same test class, each in its own process, which has imported everything before the first turn, and take
turns case by case, so that both meet the same noise. Two kinds of cases: `case` is one all_reduce of four numbers, and
what it costs is the world's beginning and end; `collective` is many of them in one case, and what one costs. Nothing
here judges a time: the ratio within one run is what to compare.

torch's class needs the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contest import BenchError, Contestant, Run, contest
from contestants.trivial import collectives_case
from figures import Summary, machine_facts, summarise, table, write_json
from options import add_common, count, counts, require_torch_needs

LIBRARY = Contestant("library, threads", ("-m", "contestants.library_threaded"))
TORCH = Contestant("torch MultiThreadedTestCase", ("-m", "contestants.torch_threaded"))

US_PER_S = 1e6
# Cases of many collectives in one contest.
LONG_CASES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant's figures for one world size, in microseconds.

    Attributes:
        case_us: What one more case costs; the first one is not among them, unless there is no other.
        first_us: The first case.
        collective_us: What one collective costs, in a case of many.
    """

    case_us: Summary
    first_us: float
    collective_us: Summary


def measure(options: argparse.Namespace, *, world_size: int) -> dict[str, Row]:
    """Run one contest.

    Raises:
        BenchError: If a contestant does not run its cases, or one of them does not pass.
    """
    # What a collective costs grows with the ranks; the case need not.
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
    """Ours over torch's; below 1, the library is faster."""
    if TORCH.name not in rows:
        return {}
    ours, torchs = rows[LIBRARY.name], rows[TORCH.name]
    pairs = {"case": (ours.case_us, torchs.case_us), "collective": (ours.collective_us, torchs.collective_us)}
    return {
        kind: {"medians": one.median / other.median, "minima": one.smallest / other.smallest}
        for kind, (one, other) in pairs.items()
    }


def world_table(world_size: int, rows: Mapping[str, Row]) -> str:
    """The table of one world size, with its ratios."""
    header = [f"world size {world_size}, us", "case", "min", "max", "first", "collective", "min", "max"]
    lines = []
    for name, row in rows.items():
        figures = [row.case_us.median, row.case_us.smallest, row.case_us.largest, row.first_us]
        figures += [row.collective_us.median, row.collective_us.smallest, row.collective_us.largest]
        lines.append([name, *(f"{figure:.0f}" for figure in figures)])
    text = table(header, lines)
    for kind, ratio in ratios(rows).items():
        text += f"library / torch, {kind}: {ratio['medians']:.2f} (minima {ratio['minima']:.2f})\n"
    return text


def main() -> int:
    """Measure and print."""
    options = _options()
    worlds = {}
    try:
        for world_size in options.worlds:
            sys.stderr.write(f"world size {world_size} ...\n")
            worlds[world_size] = measure(options, world_size=world_size)
    except BenchError as error:
        sys.stderr.write(f"threads.py: {error}\n")
        return 1
    sys.stdout.write("\n".join(world_table(world_size, rows) for world_size, rows in worlds.items()))
    if options.json:
        report = {size: {"rows": rows, "ratios": ratios(rows)} for size, rows in worlds.items()}
        write_json(options.json, {"bench": "threads", "machine": machine_facts(), "worlds": report})
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure ranks that are threads.")
    parser.add_argument("--worlds", type=counts, default=(4, 64), help="world sizes, default 4,64")
    parser.add_argument("--cases", type=count, default=10, help="cases of one collective, default 10")
    parser.add_argument(
        "--collectives",
        type=count,
        default=1000,
        help="collectives in a long case on 4 ranks, default 1000; on more ranks so many fewer",
    )
    add_common(parser, quick="--worlds 2 --cases 3 --collectives 20 --no-torch")
    options = parser.parse_args()
    if options.quick:
        options.worlds, options.cases, options.collectives, options.torch = (2,), 3, 20, False
    if options.torch:
        require_torch_needs(parser)
    return options


if __name__ == "__main__":
    sys.exit(main())
