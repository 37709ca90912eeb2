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
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from figures import BenchError, summarise, table
from options import ROOT, add_bazel, bench_parser, count, run_bench

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


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to write the same tests.

    Attributes:
        name: Its name in the tables.
        folder: Folder of its packages.
        load: First line of its BUILD files.
    """

    name: str
    folder: str
    load: str


LIBRARY = Contestant("dist_py_test", "library", 'load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")\n')
PLAIN = Contestant("py_test", "plain", 'load("@rules_python//python:py_test.bzl", "py_test")\n')
CONTESTANTS = (LIBRARY, PLAIN)


@dataclass(frozen=True, slots=True)
class Turn:
    """The measurement of one fresh server.

    Attributes:
        duration_s: Time of loading and analysing the targets.
        cpu_s: Processor time of the server for it, all threads.
        heap_added_mb: Growth of the heap by the targets, after a garbage collection.
    """

    duration_s: float
    cpu_s: float
    heap_added_mb: float


def write_workspace(folder: Path, calls: int) -> None:
    """Write a workspace with packages for every contestant."""
    (folder / "hub").mkdir(parents=True)
    (folder / "MODULE.bazel").write_text(MODULE.format(root=ROOT), encoding="utf-8")
    (folder / "BUILD.bazel").write_text("", encoding="utf-8")
    (folder / "hub" / "BUILD.bazel").write_text(HUB.format(packages=list(PACKAGES)), encoding="utf-8")
    for package in PACKAGES:
        (folder / "hub" / f"{package}.py").write_text("", encoding="utf-8")
    for contestant in CONTESTANTS:
        _write_packages(folder / contestant.folder / "first", contestant, calls=1)
        _write_packages(folder / contestant.folder / "rest", contestant, calls=calls)


def _write_packages(folder: Path, contestant: Contestant, *, calls: int) -> None:
    for start in range(0, calls, CALLS_PER_PACKAGE):
        package = folder / f"package_{start}"
        package.mkdir(parents=True)
        text = contestant.load
        for call in range(start, min(start + CALLS_PER_PACKAGE, calls)):
            (package / f"test_{call}.py").write_text("", encoding="utf-8")
            text += _call(contestant, call)
        (package / "BUILD.bazel").write_text(text, encoding="utf-8")


def _call(contestant: Contestant, call: int) -> str:
    if contestant is LIBRARY:
        return LIBRARY_CALL.format(call=call, backends=_starlark(BACKENDS))
    deps = _starlark([f"//hub:{package}" for package in PACKAGES])
    return "".join(PLAIN_CALL.format(call=call, backend=backend, deps=deps) for backend in BACKENDS)


def _starlark(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _info(bazel: NestedBazel, key: str, pattern: str) -> int:
    done = bazel.run("info", key)
    answer = re.fullmatch(pattern, done.stdout.strip())
    if done.status or answer is None:
        raise BenchError(f"`bazel info {key}` ended with {done.status}:\n{done.output}")
    return int(answer[1])


def _heap_mb(bazel: NestedBazel) -> int:
    return _info(bazel, "used-heap-size-after-gc", r"(\d+)MB")


def _cpu_s(server: Path) -> float:
    # The second field, the name of the process, may have spaces; it ends with the last bracket.
    fields = (server / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user_ticks, system_ticks = map(int, fields[11:13])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")


def _analyse(bazel: NestedBazel, pattern: str, *, targets: int) -> float:
    start = time.monotonic()
    done = bazel.run("build", "--nobuild", "--build_tests_only", pattern)
    elapsed_s = time.monotonic() - start
    # With fewer targets the figures would mean something else.
    if done.status or f"Analyzed {targets} targets" not in done.output:
        raise BenchError(f"Bazel did not analyse {targets} targets of {pattern}:\n{done.output[-4000:]}")
    return elapsed_s


def take_turn(bazel: NestedBazel, contestant: Contestant, *, calls: int) -> Turn:
    """Measure one fresh server, which has loaded the rules and analysed one call.

    Raises:
        BenchError: If Bazel did not analyse every target.
    """
    bazel.run("shutdown")
    _analyse(bazel, f"//{contestant.folder}/first/...", targets=len(BACKENDS))
    server = Path("/proc", str(_info(bazel, "server_pid", r"(\d+)")))
    before_mb, cpu_before_s = _heap_mb(bazel), _cpu_s(server)
    duration_s = _analyse(bazel, f"//{contestant.folder}/rest/...", targets=calls * len(BACKENDS))
    return Turn(duration_s, _cpu_s(server) - cpu_before_s, _heap_mb(bazel) - before_mb)


def measure(bazel: NestedBazel, *, calls: int, runs: int) -> dict[str, list[Turn]]:
    """Return every turn of each contestant."""
    turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in CONTESTANTS}
    for run in range(runs):
        for contestant in CONTESTANTS:
            turn = take_turn(bazel, contestant, calls=calls)
            turns[contestant.name].append(turn)
            sys.stderr.write(f"run {run + 1}: {contestant.name}: {turn.duration_s:.1f} s\n")
    return turns


def medians(turns: Sequence[Turn]) -> Turn:
    """Return the median of each figure."""
    return _each(turns, statistics.median)


def least(turns: Sequence[Turn]) -> Turn:
    """Return the smallest of each figure: noise can only add to it."""
    return _each(turns, min)


def _each(turns: Sequence[Turn], summary: Callable[[Sequence[float]], float]) -> Turn:
    columns = zip(*(astuple(turn) for turn in turns), strict=True)
    return Turn(*map(summary, columns))


def _over(value: float, base: float) -> float:
    # Bazel reports whole megabytes, and a collection may free more than the targets added: few targets have no ratio.
    return value / base if base > 0 else math.nan


def ratios(turns: Mapping[str, Sequence[Turn]], of: Callable[[Sequence[Turn]], Turn] = medians) -> dict[str, float]:
    """Return the library's figures over those of plain py_test.

    Args:
        turns: The turns of both.
        of: Reduces the turns of each to one.
    """
    library, plain = of(turns[LIBRARY.name]), of(turns[PLAIN.name])
    return {
        "time": library.duration_s / plain.duration_s,
        "CPU": _over(library.cpu_s, plain.cpu_s),
        "heap": _over(library.heap_added_mb, plain.heap_added_mb),
    }


def excess(found: Mapping[str, float], limits: Mapping[str, float | None]) -> list[str]:
    """Return the ratios that are above their limits or unknown, in words."""
    complaints = []
    for what, limit in limits.items():
        if limit is not None and not found[what] <= limit:
            shown = "unknown, give more calls" if math.isnan(found[what]) else f"{found[what]:.2f}"
            complaints.append(f"{what} {shown}: not within {limit:g}")
    return complaints


def turns_table(targets: int, turns: Mapping[str, Sequence[Turn]]) -> str:
    """Return the table, with its ratios."""
    rows = []
    for name, of_name in turns.items():
        seconds, middle = summarise([turn.duration_s for turn in of_name]), medians(of_name)
        times = [f"{value:.2f}" for value in (*seconds.figures, middle.cpu_s)]
        rows.append([name, *times, f"{middle.heap_added_mb:.0f}"])
    shown = ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios(turns).items())
    header = [f"{targets} targets", "median", "min", "max", "CPU", "heap"]
    return table(header, rows) + f"{LIBRARY.name} / {PLAIN.name}: {shown}\n"


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--calls", type=count, default=2000, help="of dist_py_test, default 2000")
    parser.add_argument("--runs", type=count, default=3, help="turns of each, default 3")
    for what in ("cpu", "heap"):
        parser.add_argument(f"--max-{what}", type=_ratio, metavar="R", help="limit of its ratio, default none")
    add_bazel(parser)
    options = parser.parse_args()
    complaints: list[str] = []

    def report() -> str:
        with _generated_workspace(options) as bazel:
            turns = measure(bazel, calls=options.calls, runs=options.runs)
        limits = {"CPU": options.max_cpu, "heap": options.max_heap}
        complaints.extend(excess(ratios(turns, of=least), limits))
        return turns_table(options.calls * len(BACKENDS), turns)

    status = run_bench("analysis", report)
    for complaint in complaints:
        sys.stderr.write(f"analysis.py: {LIBRARY.name} / {PLAIN.name}, {options.calls} calls: {complaint}\n")
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
