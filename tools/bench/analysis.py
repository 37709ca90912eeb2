#!/usr/bin/env python3
"""Measure the cost of `dist_py_test` for Bazel before any test runs: loading, analysis, and the server's memory.

    ./bazelw run //tools/bench:analysis -- [--calls 2000] [--runs 3] [--max-cpu R] [--max-heap R]

The program generates a workspace with the given number of calls of dist_py_test, each with three backends, and with the
same number of plain `py_test` targets, which have the same sources, and the packages of the hub as deps. A turn starts
a new server, which loads the rules and analyses one call, and then times `bazel build --nobuild` of the rest. The
contestants take turns, so that the machine's noise is the same for both. Sixteen GPUs are promised, so Bazel skips no
target.

Columns: median, fastest and slowest turn in seconds. `CPU`: median of the server's processor seconds, which other work
on the machine disturbs least. `heap`: growth of the server's heap by the targets, after a garbage collection; median in
MB. (Bazel's own `peak-heap-size` is unknown until a full collection.)

With --max-cpu or --max-heap the exit status is 1 if dist_py_test takes more than that many times the CPU or the heap of
py_test. The smallest figure of all turns counts, because other work can only add to it. The heap depends on nothing
else; the ratio of the CPU differs between machines, so its limit needs room.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from figures import BenchError, summarise, table
from options import ROOT, add_bazel, bench_parser, count, parse, run_bench

from tests.support.nested_bazel import NestedBazel, nested_bazel, scratch_folder

BACKENDS = ("gloo", "mpi", "nccl")
PACKAGES = ("psutil", "pytest", "runfiles", "torch")
# As in a package of a large repository.
CALLS_PER_PACKAGE = 20
GPUS = 16

MODULE = """\
module(name = "analysed")
bazel_dep(name = "rules_python", version = "1.0.0")
bazel_dep(name = "dist_testing", version = "0.2.0")
local_path_override(module_name = "dist_testing", path = "{root}")
"""

# Stands for a hub whose packages are one target each.
HUB = """\
load("@rules_python//python:py_library.bzl", "py_library")
[py_library(name = name, srcs = [name + ".py"], visibility = ["//visibility:public"]) for name in {packages}]
"""

LIBRARY_CALL = """\
dist_py_test(
    name = "case_{call}",
    size = "small",
    srcs = ["test_{call}.py"],
    backends = {backends},
    world_size = 4,
    deps = ["//hub:torch"],
)
"""

PLAIN_CALL = """\
py_test(
    name = "case_{call}_{backend}",
    size = "small",
    srcs = ["test_{call}.py"],
    env = {{"BACKEND": "{backend}"}},
    main = "test_{call}.py",
    tags = ["cpu:4"],
    deps = {deps},
)
"""


# Contestant, which is also the folder of its packages -> first line of their BUILD files.
LIBRARY, PLAIN = "dist_py_test", "py_test"
LOADS = {
    LIBRARY: 'load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")\n',
    PLAIN: 'load("@rules_python//python:py_test.bzl", "py_test")\n',
}


class Turn(NamedTuple):
    """The measurement of one fresh server."""

    time: float  # seconds of loading and analysing the targets
    cpu: float  # processor time of the server for it, all threads, in seconds
    heap: float  # growth of the heap by the targets, after a garbage collection, in MB


def write_workspace(folder: Path, calls: int) -> None:
    """Write a workspace with packages for every contestant."""
    (folder / "hub").mkdir(parents=True)
    (folder / "MODULE.bazel").write_text(MODULE.format(root=ROOT), encoding="utf-8")
    (folder / "BUILD.bazel").write_text("", encoding="utf-8")
    (folder / "hub" / "BUILD.bazel").write_text(HUB.format(packages=list(PACKAGES)), encoding="utf-8")
    for package in PACKAGES:
        (folder / "hub" / f"{package}.py").write_text("", encoding="utf-8")
    for contestant in LOADS:
        _write_packages(folder / contestant / "first", contestant, calls=1)
        _write_packages(folder / contestant / "rest", contestant, calls=calls)


def _write_packages(folder: Path, contestant: str, *, calls: int) -> None:
    deps = [f"//hub:{package}" for package in PACKAGES]
    for start in range(0, calls, CALLS_PER_PACKAGE):
        package = folder / f"package_{start}"
        package.mkdir(parents=True)
        text = LOADS[contestant]
        for call in range(start, min(start + CALLS_PER_PACKAGE, calls)):
            (package / f"test_{call}.py").write_text("", encoding="utf-8")
            if contestant == LIBRARY:
                text += LIBRARY_CALL.format(call=call, backends=json.dumps(BACKENDS))
            else:
                plain = (PLAIN_CALL.format(call=call, backend=one, deps=json.dumps(deps)) for one in BACKENDS)
                text += "".join(plain)
        (package / "BUILD.bazel").write_text(text, encoding="utf-8")


def _info(bazel: NestedBazel, key: str, pattern: str) -> int:
    done = bazel.run("info", key)
    answer = re.fullmatch(pattern, done.stdout.strip())
    if done.status or answer is None:
        raise BenchError(f"`bazel info {key}` ended with {done.status}:\n{done.output}")
    return int(answer[1])


def _heap_mb(bazel: NestedBazel) -> int:
    return _info(bazel, "used-heap-size-after-gc", r"(\d+)MB")


def _analyse(bazel: NestedBazel, pattern: str, *, targets: int) -> None:
    done = bazel.run("build", "--nobuild", "--build_tests_only", pattern)
    # With fewer targets the figures would mean something else.
    if done.status or f"Analyzed {targets} targets" not in done.output:
        raise BenchError(f"Bazel did not analyse {targets} targets of {pattern}:\n{done.output[-4000:]}")


def take_turn(bazel: NestedBazel, contestant: str, *, calls: int) -> Turn:
    """Measure one fresh server, which has loaded the rules and analysed one call.

    Raises:
        BenchError: If Bazel did not analyse every target.
    """
    bazel.run("shutdown")
    _analyse(bazel, f"//{contestant}/first/...", targets=len(BACKENDS))
    server, heap_mb = psutil.Process(_info(bazel, "server_pid", r"(\d+)")), _heap_mb(bazel)
    # Between the two collections of the heap, whose processor time is not that of the targets.
    before, start = server.cpu_times(), time.monotonic()
    _analyse(bazel, f"//{contestant}/rest/...", targets=calls * len(BACKENDS))
    elapsed_s, after = time.monotonic() - start, server.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return Turn(elapsed_s, cpu_s, _heap_mb(bazel) - heap_mb)


def measure(bazel: NestedBazel, *, calls: int, runs: int) -> dict[str, list[Turn]]:
    """Return every turn of each contestant."""
    turns: dict[str, list[Turn]] = {contestant: [] for contestant in LOADS}
    for run in range(runs):
        for contestant, found in turns.items():
            found.append(take_turn(bazel, contestant, calls=calls))
            sys.stderr.write(f"run {run + 1}: {contestant}: {found[-1].time:.1f} s\n")
    return turns


def reduced(turns: Sequence[Turn], to: Callable[[Sequence[float]], float]) -> Turn:
    """Return one turn, with each figure reduced: to its median, or to its minimum, because noise can only add to it."""
    return Turn(*map(to, zip(*turns, strict=True)))


def ratios(turns: Mapping[str, Sequence[Turn]], to: Callable[[Sequence[float]], float]) -> Turn:
    """Return the library's figures over those of plain py_test, each reduced first; NaN is unknown."""
    library, plain = (reduced(turns[contestant], to) for contestant in (LIBRARY, PLAIN))
    # Bazel reports whole megabytes, and a collection may free more than the targets added: few targets have no ratio.
    return Turn(*(one / other if other > 0 else math.nan for one, other in zip(library, plain, strict=True)))


def excess(found: Turn, *, cpu: float | None, heap: float | None) -> list[str]:
    """Return the ratios that are above their limits or unknown, in words."""
    complaints = []
    for what, value, limit in (("CPU", found.cpu, cpu), ("heap", found.heap, heap)):
        if limit is not None and not value <= limit:
            shown = "unknown, give more calls" if math.isnan(value) else f"{value:.2f}"
            complaints.append(f"{what} {shown}: not within {limit:g}")
    return complaints


def turns_table(targets: int, turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return the table, with its ratios."""
    rows = []
    for name, found in turns.items():
        middle = reduced(found, statistics.median)
        times = (*summarise([turn.time for turn in found]), middle.cpu)
        rows.append([name, *(f"{value:.2f}" for value in times), f"{middle.heap:.0f}"])
    header = [f"{targets} targets", "median", "min", "max", "CPU", "heap"]
    middle = ratios(turns, statistics.median)
    shown = f"time {middle.time:.2f}, CPU {middle.cpu:.2f}, heap {middle.heap:.2f}"
    return table(header, rows) + f"{LIBRARY} / {PLAIN}: {shown}\n"


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--calls", type=count, default=2000, help="of dist_py_test, default 2000")
    parser.add_argument("--runs", type=count, default=3, help="turns of each, default 3")
    for what in ("cpu", "heap"):
        parser.add_argument(f"--max-{what}", type=_ratio, metavar="R", help="limit of its ratio, default none")
    add_bazel(parser)
    options = parse(parser)
    complaints: list[str] = []

    def report() -> str:
        with _generated_workspace(options) as bazel:
            turns = measure(bazel, calls=options.calls, runs=options.runs)
        complaints.extend(excess(ratios(turns, min), cpu=options.max_cpu, heap=options.max_heap))
        return turns_table(options.calls * len(BACKENDS), turns)

    status = run_bench("analysis", report)
    for complaint in complaints:
        sys.stderr.write(f"analysis.py: {LIBRARY} / {PLAIN}, {options.calls} calls: {complaint}\n")
    return 1 if complaints else status


@contextmanager
def _generated_workspace(options: argparse.Namespace) -> Iterator[NestedBazel]:
    flags = [f"--@dist_testing//dist_testing/config:{package}=//hub:{package}" for package in PACKAGES]
    flags.append(f"--@dist_testing//dist_testing/config:gpus={GPUS}")
    with scratch_folder("analysis-bench") as scratch:
        workspace = scratch / "workspace"
        write_workspace(workspace, options.calls)
        # In the rc file, because `info` and `shutdown` do not accept these flags.
        (workspace / ".bazelrc").write_text("".join(f"build {flag}\n" for flag in flags), encoding="utf-8")
        with nested_bazel(workspace, scratch / "output", bazel=options.bazel) as bazel:
            yield bazel


def _ratio(text: str) -> float:
    ratio = float(text)
    if not 0 < ratio < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: not a positive number")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
