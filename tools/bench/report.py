#!/usr/bin/env python3
"""Measure the page and the trace of a large CI job: how long they take, how large they are, how soon a browser paints.

    python tools/bench/report.py [--cases 10000] [--ranks 8] [--failures 200] [--rounds 3] [--json FILE] [--quick]

It writes the results of a job as Bazel leaves them: for each target test.xml, event stream and test.log, and for each
failure the logs of its ranks. Then it starts `python -m dist_testing.report` on them, so that the figures contain the
start of Python. A second job is a world of 64 ranks with 1,000 phases each, of which it writes the trace.

With a Chromium (on PATH, or named by DIST_TESTING_CHROMIUM) it also measures, on the browser's own clock, when the page
is first painted and when its table of all cases can be searched.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import BenchError, Summary, machine_facts, summarise, table
from options import ROOT, bench_parser, count, run_bench

from dist_testing.core.bazel.junit import write_xml
from tests.report.chromium import browser, chromium
from tests.report.streams import Case, record_of, write_stream

_TARGETS = 20
_LOG_LINES = 300
_RULE = "-" * 100
_TRACE_RANKS = 64
# Phases of one rank in one case.
_PHASES = 6
_TRACE_PHASES = 1000
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Command:
    """What one command has taken.

    Attributes:
        wall_s: Seconds until it ended.
        cpu_s: Seconds of the processor, of Python's start, too.
    """

    wall_s: float
    cpu_s: float


def _failure(name: str, ranks: int, chance: random.Random) -> Case:
    lines = [f'  File "m_{chance.randrange(999)}.py", line {chance.randrange(999)}, in f' for _ in range(60)]
    message = f"rank 3 raised ValueError: the sum is {chance.random()}"
    frames = "\n".join(lines)
    text = f"{message}\n{_RULE}\noutput of rank 3:\n{frames}\n{_RULE}\nrank 3 of {ranks} failed first: it raised\n\n"
    victims = tuple(rank for rank in range(ranks) if rank != 3)
    return Case(name, "failed", message, text + frames, ranks, "failure", 3, victims, chance=chance)


def _log(path: Path, chance: random.Random) -> None:
    lines = [f"step {step} loss {chance.random():.6f} time {chance.random():.6f}" for step in range(_LOG_LINES)]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_job(folder: Path, *, cases: int, ranks: int, failures: int) -> None:
    """Write the results of a job into a folder such as bazel-testlogs.

    Args:
        folder: A new folder below one of the name "testlogs".
        cases: Number of cases.
        ranks: World size of each, at least 4.
        failures: Number of cases that failed.
    """
    chance = random.Random(1)
    # Failures are spread over all targets.
    failing = set(chance.sample(range(cases), failures))
    for target in range(_TARGETS):
        place = folder / "pkg" / f"target_{target}_gloo"
        (place / "test.outputs").mkdir(parents=True)
        made = []
        for number in range(target, cases, _TARGETS):
            name = f"pkg/test_{target}.py::TestModel::test_case_number[{number}-{chance.random():.6f}]"
            is_bad = number in failing
            made.append(_failure(name, ranks, chance) if is_bad else Case(name, world_size=ranks, chance=chance))
            for rank in range(ranks if is_bad else 0):
                slug = re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip("-")
                _log(place / "test.outputs" / f"{slug}.rank-{rank}.log", chance)
        write_stream(place / "test.outputs" / "events.jsonl.gz", made, target=f"//pkg:target_{target}_gloo")
        write_xml(place / "test.xml", f"//pkg:target_{target}_gloo", [record_of(case, 0.0) for case in made])
        _log(place / "test.log", chance)


def run_report(*arguments: str) -> Command:
    """Run the command, and return what it has taken.

    Raises:
        BenchError: If it fails.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    command = [sys.executable, "-m", "dist_testing.report", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise BenchError(f"the report ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Command(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def paints(page: Path, rounds: int) -> Mapping[str, Sequence[float]]:
    """Return how many seconds after its start a browser first paints the page, and when its table is ready."""
    found: dict[str, list[float]] = {"first paint": [], "table ready": []}
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as profile, browser(Path(profile)) as running:
        for _ in range(rounds):
            tab = running.tab()
            tab.open(page, wait_for="performance.getEntriesByName('first-contentful-paint').length")
            painted = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            tab.wait("!document.getElementById('controls').hidden")
            found["first paint"].append(painted / 1000)
            found["table ready"].append(tab.value("performance.now()") / 1000)
    return found


def measure(options: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Any]]:
    """Make the jobs, and return the table and the figures."""
    # pytest's and Bazel's folders lie below one of this name.
    job, world, page, trace = (
        folder / "testlogs",
        folder / "world" / "testlogs",
        folder / "p.html",
        folder / "t.json.gz",
    )
    write_job(job, cases=options.cases, ranks=options.ranks, failures=options.failures)
    numbers = range(min(-(-_TRACE_PHASES // _PHASES), options.cases))
    cases = [Case(f"t.py::c{number}", world_size=_TRACE_RANKS, chance=random.Random(number)) for number in numbers]
    write_stream(world / "a" / "events.jsonl.gz", cases, target="//a:a")
    times: dict[str, list[Command]] = {"page": [], "trace": []}
    for _ in range(options.rounds):
        times["page"].append(run_report(str(job), f"--out={page}"))
        times["trace"].append(run_report(str(world), f"--out={folder / 'w.html'}", f"--trace={trace}"))
    sizes = {"page": page.stat().st_size, "trace": trace.stat().st_size}
    seconds: dict[str, Summary] = {}
    for name, commands in times.items():
        seconds[f"{name}, until it is written"] = summarise([one.wall_s for one in commands])
        seconds[f"{name}, processor"] = summarise([one.cpu_s for one in commands])
    if chromium() is not None:
        seconds |= {f"page, {name}": summarise(values) for name, values in paints(page, options.rounds).items()}
    rows = [[name, *(f"{value:.2f}" for value in found.figures)] for name, found in seconds.items()]
    told = table(["seconds", "median", "min", "max"], rows)
    told += table(["megabytes", "size"], [[name, f"{value / _MB:.2f}"] for name, value in sizes.items()])
    return told, {"machine": machine_facts(), "seconds": seconds, "bytes": sizes}


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--cases", type=count, default=10_000, help="cases of the job, default 10000")
    parser.add_argument("--ranks", type=count, default=8, help="world size of each case, at least 4, default 8")
    parser.add_argument("--failures", type=count, default=200, help="cases that failed, default 200")
    parser.add_argument("--rounds", type=count, default=3, help="default 3")
    parser.add_argument("--quick", action="store_true", help="only see that it works: a small job, once")
    options = parser.parse_args()
    if options.quick:
        options.cases, options.failures, options.rounds = 40, 5, 1
    if options.ranks < 4 or options.failures > options.cases:
        parser.error("a world has at least 4 ranks, and no more cases can fail than there are")
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        return run_bench("report", options.json, lambda: measure(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
