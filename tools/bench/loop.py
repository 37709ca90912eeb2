#!/usr/bin/env python3
"""Measure the loop of a test author: from saving an edit to Bazel's verdict, with a warm server.

    python3 tools/bench/loop.py [--runs 7] [--cache-hits] [--json FILE] [--bazel ./bazelw] [-- FLAG ...]
    python3 tools/bench/loop.py --cache-hits -- --config=rbe_local --//tools/python:wheels=archive

Each run writes another number into a test file, as an editor's save would, and times `bazel test` of its
target. Runs of the library's target take turns with runs of a plain `py_test` that only imports torch, the
least that any such test costs, so that both meet the same noise. The files are as before afterwards.

FLAGs are for `bazel test`: they may say that tests run somewhere else. With `--cache-hits` the verdict is also
taken from the cache that the FLAGs name, each time after a `bazel clean`.

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


@dataclass(frozen=True, slots=True)
class Bazel:
    """How tests are started.

    Attributes:
        program: Bazel.
        flags: For `test`.
    """

    program: str
    flags: Sequence[str]

    def call(self, command: str, *arguments: str) -> tuple[float, int, str]:
        """Run a command; return its seconds, its exit code and its output."""
        start = time.monotonic()
        done = subprocess.run(
            [self.program, command, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return time.monotonic() - start, done.returncode, done.stdout

    def test(self, target: str, *, is_cached: bool) -> float:
        """Time a verdict.

        Raises:
            LoopError: If the test does not pass, or the verdict is from elsewhere.
        """
        elapsed_s, code, output = self.call("test", "--color=no", "--curses=no", *self.flags, target)
        if code or ("(cached) PASSED" in output) != is_cached:
            wanted = "come from the cache" if is_cached else "run and pass"
            raise LoopError(f"{target} did not {wanted} (Bazel's exit code {code}):\n{output}")
        return elapsed_s


def save(source: Path, edit: int) -> None:
    """Write another number into a file.

    Raises:
        LoopError: If it has no place for one.
    """
    text, count = _EDIT.subn(f"EDIT = {edit}", source.read_text(encoding="utf-8"))
    if count != 1:
        raise LoopError(f"{source} has {count} lines `EDIT = <number>`; one is needed.")
    source.write_text(text, encoding="utf-8")


def measure(bazel: Bazel, *, runs: int, cache_hits: bool) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of every run by what was timed and subject, after one run of each that is not counted."""
    subjects = (LIBRARY, PEER)
    # No number twice, in this process or in an earlier one: a verdict from the cache is no measurement.
    first = time.time_ns()
    edits: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    hits: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    with restored(subjects):
        for run in range(runs + 1):
            for subject in subjects:
                save(subject.source, first + run)
                elapsed_s = bazel.test(subject.target, is_cached=False)
                if run > 0:
                    edits[subject.name].append(elapsed_s)
        for _ in range(runs if cache_hits else 0):
            for subject in subjects:
                _, code, output = bazel.call("clean")
                if code:
                    raise LoopError(f"`bazel clean` ended with {code}:\n{output}")
                hits[subject.name].append(bazel.test(subject.target, is_cached=True))
    return {"edit to verdict": edits, **({"cache hit after clean": hits} if cache_hits else {})}


def ratio(seconds: dict[str, list[float]]) -> float:
    """The library's median over the peer's."""
    return statistics.median(seconds[LIBRARY.name]) / statistics.median(seconds[PEER.name])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time the loop from saving an edit to Bazel's verdict.")
    parser.add_argument("--runs", type=int, default=7, help="per target; default 7")
    parser.add_argument("--cache-hits", action="store_true", help="also time verdicts from the cache the flags name")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--bazel", default=str(ROOT / "bazelw"), help="default: ./bazelw")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="for `bazel test`, after --")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run is needed")
    try:
        timed = measure(Bazel(options.bazel, options.flags), runs=options.runs, cache_hits=options.cache_hits)
    except LoopError as error:
        sys.stderr.write(f"loop.py: {error}\n")
        return 1
    for what, seconds in timed.items():
        lines = [f"{what + ', s':<24}{'median':>8}{'min':>8}{'max':>8}"]
        for name, values in seconds.items():
            lines.append(f"{name:<24}{statistics.median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
        lines.append(f"{'ratio':<24}{ratio(seconds):8.2f}")
        sys.stdout.write("\n".join(lines) + "\n")
    if options.json:
        ratios = {what: ratio(seconds) for what, seconds in timed.items()}
        report = {"seconds": timed, "ratios_of_medians": ratios, "runs": options.runs}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
