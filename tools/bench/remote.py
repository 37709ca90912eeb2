#!/usr/bin/env python3
"""Measure the cost of remote execution per test action, compared with the same actions on this machine.

    ./bazelw run //tools/rbe -- up --pool cpu=2
    python3 tools/bench/remote.py [--actions 200] [--at-once 2] [--json FILE] [FLAG ...]

FLAGs select the executor (default: --config=rbe_local); if it has many workers, raise --at-once to their number. An
action is a test that does nothing. The same number of actions runs at once locally and remotely, and none comes from a
cache.

The table on stdout has the seconds for all actions, actions per second, and the milliseconds for which an action keeps
one worker busy; `overhead` is the difference between remote and local. The last row is for pure cache hits, with an
output base that has none of the results. Exit status 1 when an action fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from figures import BenchError, table
from options import add_bazel, bench_parser, call_bazel, count, run_bench

TARGET = "//tools/bench/loop:nothing"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Attributes:
        name: Name of the row.
        wall_s: Seconds for all actions, from Bazel's start to its end.
        per_second: Actions per second.
        per_action_ms: Milliseconds for which an action keeps one worker busy.
    """

    name: str
    wall_s: float
    per_second: float
    per_action_ms: float


def run(bazel: str, flags: Sequence[str], *, actions: int, origin: str) -> float:
    """Run the actions, and return the seconds.

    Args:
        bazel: The program.
        flags: Flags of `bazel test`.
        actions: Number of actions.
        origin: Their name in Bazel's count of processes: "remote", "remote cache hit", "linux-sandbox", ...

    Returns:
        Seconds for all actions.

    Raises:
        BenchError: If an action fails, or has another origin.
    """
    # By default Bazel does not use a cache for repeated runs.
    repeated = [f"--runs_per_test={actions}", "--cache_test_results=yes"]
    command = ["test", "--color=no", "--curses=no", *repeated, *flags, TARGET]
    elapsed_s, status, output = call_bazel(bazel, *command)
    if status or f" {actions} {origin}" not in output:
        raise BenchError(
            f'bazel {" ".join(command)}: exit status {status}, without "{actions} {origin}" actions:\n{output}'
        )
    return elapsed_s


def figure(name: str, wall_s: float, *, actions: int, at_once: int) -> Figure:
    """Return a row."""
    return Figure(name, wall_s, actions / wall_s, wall_s / actions * at_once * 1000)


def measure(bazel: str, remote: Sequence[str], *, actions: int, at_once: int, strategy: str) -> list[Figure]:
    """Measure locally, remotely and with the cache."""
    # A part of every action's key, so that no cache has it. The first action of each place does not count.
    here, there, warm = (f"--test_env=BENCH_REMOTE={place}{time.time_ns()}" for place in ("here", "there", "warm"))
    local = [f"--local_test_jobs={at_once}", f"--strategy=TestRunner={strategy}"]
    run(bazel, [*remote, warm], actions=1, origin="remote")
    remote_s = run(bazel, [*remote, there], actions=actions, origin="remote")
    run(bazel, [*local, warm], actions=1, origin=strategy)
    local_s = run(bazel, [*local, here], actions=actions, origin=strategy)
    # Bazel itself now remembers the local results, so it has to ask the cache.
    cached_s = run(bazel, [*remote, there], actions=actions, origin="remote cache hit")
    seconds = {"this machine": local_s, "remote": remote_s, "remote cache": cached_s}
    return [figure(name, wall_s, actions=actions, at_once=at_once) for name, wall_s in seconds.items()]


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--actions", type=count, default=200, help="default 200")
    parser.add_argument("--at-once", type=count, default=2, help="workers of the pool, and local jobs; default 2")
    parser.add_argument("--local-strategy", default="linux-sandbox", help="Bazel's; default linux-sandbox")
    add_bazel(parser)
    options, remote = parser.parse_known_args()
    if options.actions < 2:
        parser.error("--actions must be 2 or more")

    def report() -> tuple[str, dict[str, Any]]:
        figures = measure(
            options.bazel,
            remote or ["--config=rbe_local"],
            actions=options.actions,
            at_once=options.at_once,
            strategy=options.local_strategy,
        )
        rows = [[row.name, f"{row.wall_s:.1f}", f"{row.per_second:.1f}", f"{row.per_action_ms:.0f}"] for row in figures]
        rows.append(["overhead", "", "", f"{figures[1].per_action_ms - figures[0].per_action_ms:.0f}"])
        text = table([f"{options.actions} actions", "s", "per s", "ms each"], rows)
        return text, {"figures": figures, "actions": options.actions, "at_once": options.at_once}

    return run_bench("remote", options.json, report)


if __name__ == "__main__":
    sys.exit(main())
