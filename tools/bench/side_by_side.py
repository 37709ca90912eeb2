#!/usr/bin/env python3
"""Measure worlds side by side: a session of cases that wait, with several jobs and with one.

    python tools/bench/side_by_side.py [--cases 20] [--wait 1] [--jobs 4] [--rounds 3] [--json FILE] [--quick]

Each round runs `pytest` on the same cases with the number of jobs, and without; then the two without the wait. They
take turns, so that the machine's noise is the same for all. Each case has two ranks, waits, and makes an all_reduce.

The table has the median, the fastest and the slowest round in seconds, of the whole command with the import of torch,
and of the part after the collection. `ratio` is several jobs over one, of medians and of minima.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import BenchError, machine_facts, ratio, ratio_lines, summarise, table
from options import ROOT, bench_parser, count, parse, run_bench

from dist_testing.core.events.event import RunEnded, TestsCollected
from dist_testing.event_file import iterate_events

_SOURCE = Path(__file__).resolve().parent / "waits" / "test_waits.py"
_OPTIONS = ("-p", "dist_testing.core.pytest.plugin", "-p", "no:cacheprovider", "-q")
_QUICK = ("--cases=4", "--wait=0.1", "--jobs=2", "--rounds=1")


def _run(folder: Path, cases: int, wait_s: float, jobs: int) -> tuple[float, float]:
    """Return the seconds of the command, and those from the end of the collection to the end of the run."""
    events = folder / "events.jsonl"
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    start_s = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *_OPTIONS, f"--rootdir={folder}", f"--dist-events={events}"),
            *(f"--dist-jobs={jobs}", str(_SOURCE)),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "BENCH_CASES": str(cases), "BENCH_WAIT_S": str(wait_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    total_s = time.monotonic() - start_s
    if done.returncode or f"{cases} passed" not in done.stdout:
        raise BenchError(f"pytest ended with {done.returncode}:\n{done.stdout}")
    times = {type(event): event.at_s for event in iterate_events(events)}
    return total_s, times[RunEnded] - times[TestsCollected]


def _report(cases: int, wait_s: float, jobs: int, rounds: int) -> tuple[str, dict[str, Any]]:
    seconds: dict[tuple[float, int, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for _ in range(rounds):
            for wait in (wait_s, 0.0):
                for number in (jobs, 1):
                    for part, taken_s in zip(("command", "cases"), _run(folder, cases, wait, number), strict=True):
                        seconds.setdefault((wait, number, part), []).append(taken_s)
    found = {key: summarise(values) for key, values in seconds.items()}
    rows = [
        [f"{cases} cases wait {wait:g} s, {number} job(s): {part}", *(f"{value:.2f}" for value in one.figures)]
        for (wait, number, part), one in found.items()
    ]
    ratios = {
        f"ratio, wait {wait:g} s: {part}": ratio(found[wait, jobs, part], found[wait, 1, part])
        for wait in (wait_s, 0.0)
        for part in ("command", "cases")
    }
    text = table(["seconds", "median", "min", "max"], rows) + ratio_lines(ratios)
    figures = {f"{wait:g} s, {number} jobs, {part}": values for (wait, number, part), values in seconds.items()}
    return text, {"seconds": figures, "ratios": ratios, "machine": machine_facts(), "rounds": rounds}


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=_QUICK)
    parser.add_argument("--cases", type=count, default=20, help="cases of a session, default 20")
    parser.add_argument("--wait", type=float, default=1.0, help="seconds that each case waits, default 1")
    parser.add_argument("--jobs", type=count, default=4, help="worlds side by side, default 4")
    parser.add_argument("--rounds", type=count, default=3, help="sessions of each kind, default 3")
    options = parse(parser)
    return run_bench(
        "side_by_side", options.json, lambda: _report(options.cases, options.wait, options.jobs, options.rounds)
    )


if __name__ == "__main__":
    sys.exit(main())
