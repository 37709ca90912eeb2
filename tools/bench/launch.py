#!/usr/bin/env python3
"""Measure what a distributed test case costs: the library, a bare fork, and torch's own test classes.

    python tools/bench/launch.py [--worlds 2,4,8] [--cases 20] [--body nothing] [--isolations fork,pool]
        [--before FOLDER] [--quick]

Every contestant runs the same case, one all_reduce of four numbers over gloo, in its own process, which has imported
everything before the first turn. With `--body nothing` the case does nothing, so the figure is the contestant's own
cost: on a worker pool, the all_reduce is most of the other figure. The contestants take turns case by case, so that the
machine's noise is the same for all; every second round has the reverse order. This program does not judge times;
compare the ratios within one run. A ratio has its spread: the middle half of the ratios of single rounds. The last line
says how much CPU time other work has taken, and whether the figures count.

With `--before`, another checkout of the library takes part, so that a change is measured against the commit before it.

Columns: `median`, `min`, `max`: cost of one more case, in milliseconds. `first`: the first case of the session; on a
worker pool it includes the start of the ranks. `session`: the whole process, from its start to its end, divided by its
cases. `x raw`: the ratio to the cheaper of the two raw forks, of medians and of minima. `PSS/rank`: memory that each
rank beyond the first adds to all processes of the contestant, in MB; shared pages count once, and pages of libraries do
not count, because the kernel shares them with other programs. If the cases fork enough ranks for huge pages
(docs/isolation.md), the figure includes the fork server's copies, which a run has once.

The raw forks destroy their group, which takes 20 to 45 ms with gloo. The library leaves it to the end of the process.

torch's classes need the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import quiet
from contest import BENCH, Contestant, Run, contest, pytest_command
from contestants.turns import EMPTY_CASE, MEMORY_CASE, MEMORY_FILE
from figures import BenchError, Summary, paired_ratio, ratio_lines, summarise, table
from options import bench_parser, count, counts, parse, run_bench

from dist_testing.core.launch.isolation import FORK, POOL, isolation_names

RAW = (
    Contestant("raw fork, TCPStore", ("-m", "contestants.raw_fork", "tcp")),
    Contestant("raw fork, FileStore", ("-m", "contestants.raw_fork", "file")),
)
RAW_KEPT = Contestant("raw worker pool", ("-m", "contestants.raw_fork", "pool"))
TORCH_PROCESS = Contestant("torch MultiProcessTestCase", ("-m", "contestants.torch_suite", "process"))
TORCH_CONTINUOUS = Contestant("torch MultiProcContinuousTest", ("-m", "contestants.torch_suite", "continuous"))
TORCH_THREADED = Contestant("torch MultiThreadedTestCase", ("-m", "contestants.torch_suite", "threaded"))

MS_PER_S = 1000.0
BYTES_PER_MB = 1e6
# A rank that is an interpreter of its own takes 200 to 300 MB, and some CPU seconds to start.
FRESH_CASES = 10
LARGEST_FRESH_WORLD = 8
# Isolations of the other checkout that take part.
BEFORE = (FORK.name, POOL.name)


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant's figures for one world size.

    Attributes:
        case_ms: Cost of one more case, without the first case unless there is no other.
        costs_ms: These costs, in the order of the rounds.
        first_ms: Cost of the first case.
        session_ms: Time of the whole process divided by its cases.
        engine_ms: Time of a case by the library's engine; None for other contestants.
        pss_mb_per_rank: Memory that each rank beyond the first adds; None in a world of one.
    """

    case_ms: Summary
    costs_ms: tuple[float, ...]
    first_ms: float
    session_ms: float
    engine_ms: Summary | None
    pss_mb_per_rank: float | None


def library(isolation: str, before: Path | None = None) -> Contestant:
    """Return the library with one of its launchers; with `before`, that of another checkout."""
    options = [f"--dist-isolation={isolation}"]
    if isolation == "thread":
        # No other backend connects threads; threads.py measures its cost.
        options.append("--dist-backend=threaded")
    command = pytest_command("test_trivial.py", *options)
    if before is None:
        return Contestant(f"library, {isolation}", command)
    # First the contestants, then the other checkout, and at last the places of this one.
    places = [str(BENCH), str(before), *filter(None, sys.path)]
    return Contestant(f"library before, {isolation}", command, (("PYTHONPATH", os.pathsep.join(places)),))


def measure(case_counts: Mapping[Contestant, int], *, world_size: int, body: str = "") -> dict[str, tuple[Run, int]]:
    """Run a contest.

    Args:
        case_counts: Contestant -> number of its timed cases. One more case, at the end, measures memory.
        world_size: Number of ranks.
        body: Prefix of the names of the timed cases: `EMPTY_CASE`, or empty.

    Returns:
        Contestant's name -> its run, and the bytes of all its processes.

    Raises:
        BenchError: If a contestant does not run its cases, or a case does not pass.
    """
    cases = {who: [*(f"{body}{number}" for number in range(count)), MEMORY_CASE] for who, count in case_counts.items()}
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        runs = contest(cases, world_size=world_size, folder=Path(folder))
        for name, run in runs.items():
            for turn in run.turns:
                if not turn.verdict.get("passed", True):
                    raise BenchError(f"{name}: case {turn.case} did not pass:\n{turn.verdict['text']}")
        return {name: (run, int((run.folder / MEMORY_FILE).read_text("utf-8"))) for name, run in runs.items()}


def row(run: Run, *, world_size: int, pss_bytes: int, pss_bytes_of_one: int) -> Row:
    """Sum up a run.

    Args:
        run: The run; its last turn measured memory.
        world_size: Number of ranks.
        pss_bytes: Memory of the contestant.
        pss_bytes_of_one: Memory of the contestant in a world of one rank.
    """
    *timed, _ = run.turns
    costs_ms = [MS_PER_S * turn.duration_s for turn in timed]
    engine_ms = [MS_PER_S * turn.verdict["engine_s"] for turn in timed if "engine_s" in turn.verdict]
    per_rank = (pss_bytes - pss_bytes_of_one) / (world_size - 1) / BYTES_PER_MB if world_size > 1 else None
    return Row(
        case_ms=summarise(costs_ms[1:] or costs_ms),
        costs_ms=tuple(costs_ms[1:] or costs_ms),
        first_ms=costs_ms[0],
        session_ms=MS_PER_S * run.session_s / len(run.turns),
        engine_ms=summarise(engine_ms[1:] or engine_ms) if engine_ms else None,
        pss_mb_per_rank=per_rank,
    )


def measure_worlds(options: argparse.Namespace) -> dict[int, dict[str, Row]]:
    """Run one contest per world size, and a short one in a world of one rank, for the memory."""

    def case_counts(world_size: int, *, timed: int) -> dict[Contestant, int]:
        few = min(timed, options.fresh_cases)
        fresh_fits = world_size <= options.largest_fresh_world
        counts = dict.fromkeys((*RAW, RAW_KEPT), timed)
        for isolation in options.isolations:
            if isolation != "spawn":
                counts[library(isolation)] = timed
            elif fresh_fits:
                counts[library(isolation)] = few
        if options.before is not None:
            counts |= dict.fromkeys(
                (library(isolation, options.before) for isolation in BEFORE if isolation in options.isolations), timed
            )
        if options.torch:
            counts[TORCH_THREADED] = timed
        if options.torch and fresh_fits:
            counts |= {TORCH_PROCESS: few, TORCH_CONTINUOUS: timed}
        return counts

    ones = measure(case_counts(1, timed=0), world_size=1)
    rows = {}
    for world_size in options.worlds:
        sys.stderr.write(f"world size {world_size} ...\n")
        counts = case_counts(world_size, timed=options.cases)
        runs = measure(counts, world_size=world_size, body=EMPTY_CASE if options.body == "nothing" else "")
        rows[world_size] = {
            name: row(run, world_size=world_size, pss_bytes=pss_bytes, pss_bytes_of_one=ones[name][1])
            for name, (run, pss_bytes) in runs.items()
        }
    return rows


def yardstick(rows: Mapping[str, Row]) -> str:
    """Return the name of the cheaper raw fork."""
    return min((contestant.name for contestant in RAW), key=lambda name: rows[name].case_ms.median)


def ratios(rows: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """Return the ratios that users compare: the library and the raw fork, torch's classes and their launchers."""
    fork, spawn, pool = (library(isolation).name for isolation in ("fork", "spawn", "pool"))
    pairs = (
        (fork, yardstick(rows)),
        (f"library before, {FORK.name}", yardstick(rows)),
        (fork, f"library before, {FORK.name}"),
        (pool, f"library before, {POOL.name}"),
        (TORCH_PROCESS.name, fork),
        (TORCH_PROCESS.name, spawn),
        (pool, RAW_KEPT.name),
        (TORCH_CONTINUOUS.name, pool),
    )
    return {
        f"{one} / {other}": paired_ratio(rows[one].costs_ms, rows[other].costs_ms)
        for one, other in pairs
        if one in rows and other in rows
    }


def world_table(world_size: int, rows: Mapping[str, Row]) -> str:
    """Return the table of one world size, with its ratios."""
    raw = rows[yardstick(rows)].case_ms
    lines = []
    for name, figures in rows.items():
        cost = figures.case_ms
        memory = "" if figures.pss_mb_per_rank is None else f"{figures.pss_mb_per_rank:.1f}"
        times_ms = (*cost.figures, figures.first_ms, figures.session_ms)
        factors = (cost.median / raw.median, cost.smallest / raw.smallest)
        lines.append([name, *(f"{ms:.1f}" for ms in times_ms), *(f"{factor:.2f}" for factor in factors), memory])
        if (engine := figures.engine_ms) is not None:
            factors = (engine.median / raw.median, engine.smallest / raw.smallest)
            cells = [*(f"{ms:.1f}" for ms in engine.figures), "", "", *(f"{factor:.2f}" for factor in factors), ""]
            lines.append(["  by its engine's clock", *cells])
    header = [f"world size {world_size}", "median", "min", "max", "first", "session", "x raw", "(min)", "PSS/rank"]
    return table(header, lines) + ratio_lines(ratios(rows))


def main() -> int:
    """Measure and print."""
    options = _options()

    def report() -> str:
        start = quiet.now()
        rows = measure_worlds(options)
        others = start.others_until(quiet.now())
        text = "\n".join(world_table(world_size, of_world) for world_size, of_world in rows.items())
        return f"{text}\n{quiet.line(others)}"

    return run_bench("launch", report)


def _options() -> argparse.Namespace:
    parser = bench_parser(__doc__, quick=("--worlds=2", "--cases=3", "--fresh-cases=1", "--no-torch"), has_torch=True)
    parser.add_argument("--worlds", type=counts, default=(2, 4, 8), help="world sizes, default 2,4,8")
    parser.add_argument("--cases", type=count, default=20, help="timed cases of each contestant, default 20")
    parser.add_argument(
        "--fresh-cases",
        type=count,
        default=FRESH_CASES,
        help=f"limit of the cases where each case starts interpreters, default {FRESH_CASES}",
    )
    parser.add_argument(
        "--largest-fresh-world",
        type=count,
        default=LARGEST_FRESH_WORLD,
        help=f"largest world where each rank is an interpreter of its own, default {LARGEST_FRESH_WORLD}",
    )
    parser.add_argument(
        "--isolations",
        type=_isolations,
        default=isolation_names(),
        help="of the library, such as fork,pool; default all",
    )
    parser.add_argument("--before", type=_checkout, metavar="FOLDER", help="another checkout, to compare with")
    parser.add_argument(
        "--body", choices=("all_reduce", "nothing"), default="all_reduce", help="work of a case, default all_reduce"
    )
    return parse(parser)


def _isolations(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in isolation_names()]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: expected one of {', '.join(isolation_names())}")
    return names


def _checkout(text: str) -> Path:
    folder = Path(text).resolve()
    if not (text and folder.joinpath("dist_testing", "__init__.py").is_file()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a checkout, with a folder dist_testing")
    return folder


if __name__ == "__main__":
    sys.exit(main())
