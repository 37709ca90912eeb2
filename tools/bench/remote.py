#!/usr/bin/env python3
"""Measure what remote execution costs per test action, against the same actions on this machine.

    ./bazelw run //tools/rbe -- up --pool cpu=2
    python3 tools/bench/remote.py [--actions 200] [--at-once 2] [--json FILE] [FLAG ...]

FLAGs say where actions run remotely (default: --config=rbe_local); with an executor of many workers, raise --at-once to
their number. An action is a test that does nothing. Locally and remotely as many run at once, none comes from a cache.

The table on stdout has the seconds for all actions, actions per second, and the milliseconds for which one of the
places is busy with an action; `overhead` is how many more those are remotely. Then come the pure cache hits, with
nothing of them in the output base. Exit status 1 when an action fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "//tools/bench/loop:nothing"


class RemoteError(Exception):
    """Actions did not run as they should; there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Attributes:
        name: Of the row.
        wall_s: Seconds for all actions, from Bazel's start to its end.
        per_second: Actions per second.
        per_action_ms: Milliseconds for which one of the places at once is busy.
    """

    name: str
    wall_s: float
    per_second: float
    per_action_ms: float


def run(bazel: str, flags: Sequence[str], *, actions: int, origin: str) -> float:
    """Run the actions.

    Args:
        bazel: The program.
        flags: For `bazel test`.
        actions: How many.
        origin: What Bazel's count of processes must call them: "remote", "remote cache hit", "linux-sandbox", ...

    Returns:
        Seconds.

    Raises:
        RemoteError: If one fails, or came from elsewhere.
    """
    # Bazel does not ask a cache for repeated runs unless it is told to.
    repeated = [f"--runs_per_test={actions}", "--cache_test_results=yes"]
    command = [bazel, "test", "--color=no", "--curses=no", *repeated, *flags, TARGET]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    elapsed_s = time.monotonic() - start
    if done.returncode or f" {actions} {origin}" not in done.stdout:
        raise RemoteError(
            f'{" ".join(command)}: exit status {done.returncode}, without "{actions} {origin}" actions:\n{done.stdout}'
        )
    return elapsed_s


def figure(name: str, wall_s: float, *, actions: int, at_once: int) -> Figure:
    """Make a row."""
    return Figure(name, wall_s, actions / wall_s, wall_s / actions * at_once * 1000)


def measure(bazel: str, remote: Sequence[str], *, actions: int, at_once: int, strategy: str) -> list[Figure]:
    """Measure locally, remotely and from the cache."""
    # In the key of every action, so that none is in a cache; the first one of each place is not counted.
    here, there, warm = (f"--test_env=BENCH_REMOTE={place}{time.time_ns()}" for place in ("here", "there", "warm"))
    local = [f"--local_test_jobs={at_once}", f"--strategy=TestRunner={strategy}"]
    run(bazel, [*remote, warm], actions=1, origin="remote")
    remote_s = run(bazel, [*remote, there], actions=actions, origin="remote")
    run(bazel, [*local, warm], actions=1, origin=strategy)
    local_s = run(bazel, [*local, here], actions=actions, origin=strategy)
    # Bazel itself now remembers the local ones, and has to ask.
    cached_s = run(bazel, [*remote, there], actions=actions, origin="remote cache hit")
    seconds = {"this machine": local_s, "remote": remote_s, "remote cache": cached_s}
    return [figure(name, wall_s, actions=actions, at_once=at_once) for name, wall_s in seconds.items()]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time test actions on a remote executor.", allow_abbrev=False)
    parser.add_argument("--actions", type=int, default=200, help="default 200")
    parser.add_argument("--at-once", type=int, default=2, help="workers of the pool, and local jobs; default 2")
    parser.add_argument("--local-strategy", default="linux-sandbox", help="Bazel's; default linux-sandbox")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--bazel", default=str(ROOT / "bazelw"), help="default: ./bazelw")
    options, remote = parser.parse_known_args()
    if options.actions < 2 or options.at_once < 1:
        parser.error("--actions has to be 2 or more, --at-once 1 or more")
    try:
        figures = measure(
            options.bazel,
            remote or ["--config=rbe_local"],
            actions=options.actions,
            at_once=options.at_once,
            strategy=options.local_strategy,
        )
    except RemoteError as error:
        sys.stderr.write(f"remote.py: {error}\n")
        return 1
    lines = [f"{f'{options.actions} actions':<16}{'s':>8}{'per s':>8}{'ms each':>9}"]
    lines += [f"{row.name:<16}{row.wall_s:8.1f}{row.per_second:8.1f}{row.per_action_ms:9.0f}" for row in figures]
    overhead_ms = figures[1].per_action_ms - figures[0].per_action_ms
    lines.append(f"{'overhead':<16}{'':>8}{'':>8}{overhead_ms:9.0f}")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json:
        report = {"figures": [asdict(row) for row in figures], "actions": options.actions, "at_once": options.at_once}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
