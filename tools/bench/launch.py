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
from pathlib import Path
from typing import NamedTuple

import figures
from contest import BENCH, Contestant, Run, contest, pytest_command, require_passes
from contestants.turns import EMPTY_CASE, MEMORY_CASE, MEMORY_FILE
from figures import ratio_line, summarise, table
from options import bench_parser, count, counts, parse, run_bench, some_of

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
# A rank that is an interpreter of its own takes 200 to 300 MB, and some CPU seconds to start: limits of the cases and
# of the worlds where each case starts such ranks.
FRESH_CASES = 10
LARGEST_FRESH_WORLD = 8
# Isolations of the other checkout that take part.
BEFORE = (FORK.name, POOL.name)


class Row(NamedTuple):
    """A contestant's figures for one world size."""

    # Cost of each case, in the order of the rounds; without the first case unless there is no other.
    costs_ms: list[float]
    first_ms: float  # cost of the first case
    session_ms: float  # time of the whole process divided by its cases
    engine_ms: list[float]  # times of the same cases by the library's engine; empty for other contestants
    pss_mb_per_rank: float | None  # memory that each rank beyond the first adds; None in a world of one


def library(isolation: str, before: Path | None = None) -> Contestant:
    """Return the library with one of its launchers; with `before`, that of another checkout."""
    options = [f"--dist-isolation={isolation}"]
    if isolation == "thread":
        # No other backend connects threads; threads.py measures its cost.
        options.append("--dist-backend=threaded")
    command = pytest_command("test_cases.py::test_trivial", *options)
    if before is None:
        return Contestant(f"library, {isolation}", command)
    # First the contestants, then the other checkout, and at last the places of this one.
    places = [str(BENCH), str(before), *filter(None, sys.path)]
    return Contestant(f"library before, {isolation}", command, (("PYTHONPATH", os.pathsep.join(places)),))


def measure(case_counts: Mapping[Contestant, int], *, world_size: int, body: str = "") -> dict[str, tuple[Run, int]]:
    """Run a contest; return contestant's name -> its run, and the bytes of all its processes.

    One more case than `case_counts` has, at the end, measures memory. `body` begins the names of the other cases.

    Raises:
        BenchError: If a contestant does not run its cases, or a case does not pass.
    """
    cases = {who: [*(f"{body}{number}" for number in range(count)), MEMORY_CASE] for who, count in case_counts.items()}
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        runs = contest(cases, world_size=world_size, folder=Path(folder))
        require_passes(runs)
        return {name: (run, int((run.folder / MEMORY_FILE).read_text("utf-8"))) for name, run in runs.items()}


def row(run: Run, *, world_size: int, pss_bytes: int, pss_bytes_of_one: int) -> Row:
    """Sum up a run, whose last turn measured memory: that of the contestant, here and in a world of one rank."""
    *timed, _ = run.turns
    costs_ms = [MS_PER_S * turn.duration_s for turn in timed]
    engine_ms = [MS_PER_S * turn.verdict["engine_s"] for turn in timed if "engine_s" in turn.verdict]
    return Row(
        costs_ms=costs_ms[1:] or costs_ms,
        first_ms=costs_ms[0],
        session_ms=MS_PER_S * run.session_s / len(run.turns),
        engine_ms=engine_ms[1:] or engine_ms,
        pss_mb_per_rank=(pss_bytes - pss_bytes_of_one) / (world_size - 1) / BYTES_PER_MB if world_size > 1 else None,
    )


def case_counts(options: argparse.Namespace, world_size: int, *, timed: int) -> dict[Contestant, int]:
    """Return the contestants of a world size, each with the number of its timed cases."""
    fresh = min(timed, FRESH_CASES) if world_size <= LARGEST_FRESH_WORLD else None
    wanted: dict[Contestant, int | None] = dict.fromkeys((*RAW, RAW_KEPT), timed)
    for isolation in options.isolations:
        wanted[library(isolation)] = fresh if isolation == "spawn" else timed
        if options.before is not None and isolation in BEFORE:
            wanted[library(isolation, options.before)] = timed
    if options.torch:
        wanted[TORCH_THREADED] = timed
        wanted |= {TORCH_PROCESS: fresh, TORCH_CONTINUOUS: None if fresh is None else timed}
    return {contestant: number for contestant, number in wanted.items() if number is not None}


def measure_worlds(options: argparse.Namespace) -> dict[int, dict[str, Row]]:
    """Run one contest per world size, and a short one in a world of one rank, for the memory."""
    ones = measure(case_counts(options, 1, timed=0), world_size=1)
    rows = {}
    for world_size in options.worlds:
        sys.stderr.write(f"world size {world_size} ...\n")
        wanted = case_counts(options, world_size, timed=options.cases)
        runs = measure(wanted, world_size=world_size, body=EMPTY_CASE if options.body == "nothing" else "")
        rows[world_size] = {
            name: row(run, world_size=world_size, pss_bytes=pss_bytes, pss_bytes_of_one=ones[name][1])
            for name, (run, pss_bytes) in runs.items()
        }
    return rows


def ratios(rows: Mapping[str, Row], raw: str) -> str:
    """Return the ratios that users compare: the library and the raw fork, torch's classes and their launchers."""
    fork, spawn, pool = (library(isolation).name for isolation in ("fork", "spawn", "pool"))
    before_fork, before_pool = (f"library before, {isolation}" for isolation in BEFORE)
    pairs = (
        (fork, raw),
        (before_fork, raw),
        (fork, before_fork),
        (pool, before_pool),
        (TORCH_PROCESS.name, fork),
        (TORCH_PROCESS.name, spawn),
        (pool, RAW_KEPT.name),
        (TORCH_CONTINUOUS.name, pool),
    )
    return "".join(
        ratio_line(f"{one} / {other}", rows[one].costs_ms, rows[other].costs_ms)
        for one, other in pairs
        if one in rows and other in rows
    )


def world_table(world_size: int, rows: Mapping[str, Row]) -> str:
    """Return the table of one world size, with its ratios."""
    yardstick = min((contestant.name for contestant in RAW), key=lambda name: summarise(rows[name].costs_ms).median)
    raw = summarise(rows[yardstick].costs_ms)

    def line(name: str, costs_ms: list[float], *others_ms: str, memory: str) -> list[str]:
        cost = summarise(costs_ms)
        factors = (f"{cost.median / raw.median:.2f}", f"{cost.smallest / raw.smallest:.2f}")
        return [name, *(f"{ms:.1f}" for ms in cost), *others_ms, *factors, memory]

    lines = []
    for name, row in rows.items():
        memory = "" if row.pss_mb_per_rank is None else f"{row.pss_mb_per_rank:.1f}"
        lines.append(line(name, row.costs_ms, f"{row.first_ms:.1f}", f"{row.session_ms:.1f}", memory=memory))
        if row.engine_ms:
            lines.append(line("  by its engine's clock", row.engine_ms, "", "", memory=""))
    header = [f"world size {world_size}", "median", "min", "max", "first", "session", "x raw", "(min)", "PSS/rank"]
    return table(header, lines) + ratios(rows, yardstick)


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=("--worlds=2", "--cases=2", "--no-torch"), has_torch=True)
    parser.add_argument("--worlds", type=counts, default=(2, 4, 8), help="world sizes, default 2,4,8")
    parser.add_argument("--cases", type=count, default=20, help="timed cases of each contestant, default 20")
    names = isolation_names()
    parser.add_argument("--isolations", type=some_of(names), default=names, help="of the library; default all")
    parser.add_argument("--before", type=_checkout, metavar="FOLDER", help="another checkout, to compare with")
    parser.add_argument(
        "--body", choices=("all_reduce", "nothing"), default="all_reduce", help="work of a case, default all_reduce"
    )
    options = parse(parser)

    def report() -> str:
        start = figures.now()
        rows = measure_worlds(options)
        others = start.others_until(figures.now())
        text = "\n".join(world_table(world_size, of_world) for world_size, of_world in rows.items())
        return f"{text}\n{figures.quiet_line(others)}"

    return run_bench("launch", report)


def _checkout(text: str) -> Path:
    folder = Path(text).resolve()
    if not (text and folder.joinpath("dist_testing", "__init__.py").is_file()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a checkout, with a folder dist_testing")
    return folder


if __name__ == "__main__":
    sys.exit(main())
