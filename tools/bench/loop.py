#!/usr/bin/env python3
"""Measure the loop of a test author: from saving an edit to Bazel's verdict, with a warm server.

    python3 tools/bench/loop.py [--runs 7] [--json FILE] [--bazel ./bazelw]

Each run writes another number into a test file, as an editor's save would, and times `bazel test` of its
target. Runs of the library's target take turns with runs of a plain `py_test` that only imports torch, the
least that any such test costs, so that both meet the same noise. The files are as before afterwards.

The table on stdout has the median, the fastest and the slowest run in seconds; `ratio` is the library's
median over the peer's. Exit status 1 when a test fails.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "loop"

_EDIT = re.compile(r"^EDIT = \d+$", re.MULTILINE)


class LoopError(Exception):
    """A run did not end with a fresh pass; there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and the file that is edited.

    Attributes:
        name: In the table.
        target: Label of the test.
        source: File with a line `EDIT = <number>`.
    """

    name: str
    target: str
    source: Path


LIBRARY = Subject("dist_py_test, 2 ranks", "//tools/bench/loop:edited_gloo", FIXTURES / "test_edited.py")
PEER = Subject("py_test, import torch", "//tools/bench/loop:peer", FIXTURES / "import_torch.py")


@contextmanager
def restored(subjects: Sequence[Subject]) -> Iterator[None]:
    """Put the files back as they were, however the block ends."""
    before = {subject.source: subject.source.read_bytes() for subject in subjects}
    try:
        yield
    finally:
        for source, content in before.items():
            source.write_bytes(content)


def edit_and_run(bazel: str, subject: Subject, *, edit: int) -> float:
    """Save an edit and wait for the verdict.

    Returns:
        Seconds from the save to the end of Bazel.

    Raises:
        LoopError: If the test does not run and pass.
    """
    text, count = _EDIT.subn(f"EDIT = {edit}", subject.source.read_text(encoding="utf-8"))
    if count != 1:
        raise LoopError(f"{subject.source} has {count} lines `EDIT = <number>`; one is needed.")
    subject.source.write_text(text, encoding="utf-8")
    command = [bazel, "test", "--color=no", "--curses=no", subject.target]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    elapsed_s = time.monotonic() - start
    if done.returncode or "(cached) PASSED" in done.stdout:
        raise LoopError(f"{subject.target} did not run and pass (Bazel's exit code {done.returncode}):\n{done.stdout}")
    return elapsed_s


def measure(bazel: str, *, runs: int) -> dict[str, list[float]]:
    """Return the seconds of every run by subject, after one run of each that is not counted."""
    subjects = (LIBRARY, PEER)
    # No number twice, in this process or in an earlier one: a verdict from the cache is no measurement.
    first = time.time_ns()
    seconds: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    with restored(subjects):
        for run in range(runs + 1):
            for subject in subjects:
                elapsed_s = edit_and_run(bazel, subject, edit=first + run)
                if run > 0:
                    seconds[subject.name].append(elapsed_s)
    return seconds


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the loop from saving an edit to Bazel's verdict.")
    parser.add_argument("--runs", type=int, default=7, help="per target; default 7")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--bazel", default=str(ROOT / "bazelw"), help="default: ./bazelw")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run is needed")
    try:
        seconds = measure(options.bazel, runs=options.runs)
    except LoopError as error:
        sys.stderr.write(f"loop.py: {error}\n")
        return 1
    ratio = statistics.median(seconds[LIBRARY.name]) / statistics.median(seconds[PEER.name])
    lines = [f"{'edit to verdict, s':<24}{'median':>8}{'min':>8}{'max':>8}"]
    for name, values in seconds.items():
        lines.append(f"{name:<24}{statistics.median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
    lines.append(f"{'ratio':<24}{ratio:8.2f}")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json:
        report = {"seconds": seconds, "ratio_of_medians": ratio, "runs": options.runs}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
