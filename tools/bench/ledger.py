#!/usr/bin/env python3
"""Measure what the collective ledger costs a case: with it, and without it, case by case in turns.

    python tools/bench/ledger.py [--cases 100] [--calls 1,100] [--json FILE] [--quick]

World of 4 over gloo. A case makes so many all_reduce calls of four numbers. `without`: torch's flight recorder is off,
no helper thread answers the runner, and the calls of the ranks are not compared. Columns: median, min and max of one
case, in milliseconds: of the time that it takes, and of the CPU time that the runner and the ranks use (of cases in
blocks of 10, because the kernel counts in steps). The ratio is that of a case with the ledger to one without it; that
of the CPU time says more on a machine that does something else, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from figures import BenchError, Summary, machine_facts, ratio, ratio_lines, summarise, table
from options import bench_parser, count, counts, run_bench

from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.procfs import children_of, stat_of
from dist_testing.core.ground.world import World
from tests.support.worlds import engine_for, run

WORLD_SIZE = 4
MS_PER_S = 1000.0
_NAMES = ("with", "without")
# Cases in a measurement of CPU time: the kernel counts in steps of 10 ms.
_BLOCK = 10


class _NoCalls:
    def end_case(self, *, is_strict: bool) -> None:
        """Tell nothing."""


def _reduces(_: World, arguments: dict[str, Any]) -> None:
    for _number in range(arguments["calls"]):
        dist.all_reduce(torch.ones(4))


@contextlib.contextmanager
def _engines() -> Iterator[tuple[dict[str, Engine], dict[str, list[int]]]]:
    """One engine with the ledger and one without it; each has its own fork server, which is made here.

    Also the pids of the processes that each has started.
    """
    with contextlib.ExitStack() as stack:
        engines = {}
        servers = {}
        for name in _NAMES:
            before = children_of(os.getpid())
            with contextlib.ExitStack() as changes:
                if name == "without":
                    for function, other in (("answer_with_ledger", lambda _: None), ("_call_record", _no_record)):
                        changes.enter_context(mock.patch(f"dist_testing.core.rank.bootstrap.{function}", other))
                engines[name] = stack.enter_context(engine_for({"reduces": _reduces}))
                # The first case forks the fork server, which keeps the changes.
                _run_case(engines[name], name, "fork", 1)
            servers[name] = sorted(children_of(os.getpid()) - before)
        yield engines, servers


def _no_record(*_: object, **__: object) -> _NoCalls:
    return _NoCalls()


def _run_case(engine: Engine, name: str, isolation: str, calls: int) -> None:
    pool: dict[str, Any] = {"pool": "bench"} if isolation == "pool" else {}
    recorder = {"TORCH_FR_BUFFER_SIZE": "0"} if name == "without" else {}
    with mock.patch.dict(os.environ, recorder):
        result = run(engine, "reduces", world_size=WORLD_SIZE, isolation=isolation, arguments={"calls": calls}, **pool)
    if result.verdict.status is not Status.PASSED:
        raise BenchError(f"a case {name} the ledger: {result.verdict.reason}")


def _cpu_ms(pids: Iterable[int]) -> float:
    """CPU time that processes and their descendants, ended ones included, have used until now."""
    found = 0.0
    for pid in pids:
        if stat := stat_of(pid):
            # proc(5): the fields 14 to 17 are the times of the process and of the children that it has waited for.
            found += sum(map(int, stat[11:15])) * MS_PER_S / os.sysconf("SC_CLK_TCK")
        found += _cpu_ms(children_of(pid))
    return found


def measure(options: argparse.Namespace) -> dict[str, dict[str, Summary]]:
    """Return what was measured -> with or without -> milliseconds of a case."""
    found = {}
    with _engines() as (engines, servers):
        for isolation in ("fork", "pool"):
            for calls in options.calls:
                times: dict[str, list[float]] = {name: [] for name in _NAMES}
                cpu: dict[str, list[float]] = {name: [] for name in _NAMES}
                for name in _NAMES:
                    # The first case of a pool makes the ranks.
                    _run_case(engines[name], name, isolation, calls)
                for begin in range(0, options.cases, _BLOCK):
                    block = range(begin, min(begin + _BLOCK, options.cases))
                    # While one engine runs a case, the processes of the other one do nothing.
                    used = {name: -_cpu_ms(servers[name]) for name in _NAMES}
                    for number in block:
                        for name in _NAMES if number % 2 else reversed(_NAMES):
                            begin_s, own_s = time.perf_counter(), time.process_time()
                            _run_case(engines[name], name, isolation, calls)
                            times[name].append(MS_PER_S * (time.perf_counter() - begin_s))
                            used[name] += MS_PER_S * (time.process_time() - own_s)
                    for name in _NAMES:
                        cpu[name].append((used[name] + _cpu_ms(servers[name])) / len(block))
                for what, figures in (("time", times), ("CPU", cpu)):
                    found[f"{isolation}, {calls} call(s), {what}"] = {
                        name: summarise(of) for name, of in figures.items()
                    }
            for engine in engines.values():
                engine.end_pool()
    return found


def main() -> int:
    """Measure and print."""
    options = _options()

    def report() -> tuple[str, dict[str, Any]]:
        found = measure(options)
        rows = [
            [f"{case}, {name} ledger", *(f"{figure:.2f}" for figure in summary.figures)]
            for case, by_name in found.items()
            for name, summary in by_name.items()
        ]
        ratios = {case: ratio(by_name["with"], by_name["without"]) for case, by_name in found.items()}
        text = table(["ms per case", "median", "min", "max"], rows) + ratio_lines(ratios)
        return text, {"machine": machine_facts(), "cases": found, "ratios": ratios}

    return run_bench("ledger", options.json, report)


def _options() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--cases", type=count, default=100, help="timed cases of each kind, default 100")
    parser.add_argument("--calls", type=counts, default=(1, 100), help="calls per case, default 1,100")
    parser.add_argument("--quick", action="store_true", help="only see that it works: one case of each kind")
    options: argparse.Namespace = parser.parse_args()
    if options.quick:
        options.cases, options.calls = 1, (1,)
    return options


if __name__ == "__main__":
    sys.exit(main())
