#!/usr/bin/env python3
"""Measure what simulated nodes add to the cost of a distributed test case.

    python tools/bench/nodes.py [--nodes 2,8] [--world-size 8] [--cases 20] [--json FILE] [--quick]

Every contestant runs the same case, one all_reduce of four numbers over gloo, on fresh ranks; the contestants differ in
the number of nodes only. They take turns case by case, so that the machine's noise is the same for all. `more` is what
a case costs more than the one without nodes in the same round: its median, and the middle half of the rounds. The goals
are 150 ms for a second node and 1000 ms for eight. This program does not judge times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import quiet
from contest import Contestant, Run, contest, pytest_command
from figures import BenchError, machine_facts, summarise, table
from options import bench_parser, count, counts, parse, run_bench

_QUICK = ("--nodes=2", "--world-size=2", "--cases=3")
_MS_PER_S = 1000.0


def _contestant(nodes: int) -> Contestant:
    return Contestant(
        f"{nodes} node{'s' if nodes > 1 else ''}", pytest_command("test_trivial.py", f"--dist-nodes={nodes}")
    )


def _costs_ms(name: str, run: Run) -> list[float]:
    """Return the cost of each case without the first, which starts the fork server."""
    for turn in run.turns:
        if not turn.verdict.get("passed"):
            raise BenchError(f"{name}: case {turn.case} did not pass:\n{turn.verdict.get('text')}")
    return [_MS_PER_S * turn.duration_s for turn in run.turns[1:]]


def _report(nodes: Sequence[int], world_size: int, cases: int) -> tuple[str, dict[str, Any]]:
    contestants = [_contestant(number) for number in (1, *nodes)]
    names = list(map(str, range(cases + 1)))
    start = quiet.now()
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        runs = contest(dict.fromkeys(contestants, names), world_size=world_size, folder=Path(folder))
    others = start.until(quiet.now())
    costs_ms = {name: _costs_ms(name, run) for name, run in runs.items()}
    base_ms = costs_ms[contestants[0].name]
    rows, more_ms = [], {}
    for name, each_ms in costs_ms.items():
        found = [mine - its for mine, its in zip(each_ms, base_ms, strict=True)]
        more_ms[name] = statistics.quantiles(found, n=4, method="inclusive")
        low, middle, high = more_ms[name]
        rows.append([name, *(f"{value:.0f}" for value in (*summarise(each_ms).figures, middle, low, high))])
    text = table([f"{world_size} ranks, ms", "median", "min", "max", "more", "low", "high"], rows)
    figures = {"costs_ms": costs_ms, "more_ms": more_ms, "machine": machine_facts(), **others.to_json()}
    return text + others.line(), figures


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=_QUICK)
    parser.add_argument("--nodes", type=_several, default=(2, 8), help="numbers of nodes, default 2,8")
    parser.add_argument("--world-size", type=count, default=8, help="ranks, default 8; each number of nodes divides it")
    parser.add_argument("--cases", type=count, default=20, help="cases of each contestant, default 20")
    options = parse(parser)
    return run_bench("nodes", options.json, lambda: _report(options.nodes, options.world_size, options.cases))


def _several(text: str) -> tuple[int, ...]:
    numbers = counts(text)
    if 1 in numbers:
        raise argparse.ArgumentTypeError("a world without nodes takes part in any case; name numbers from 2")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
