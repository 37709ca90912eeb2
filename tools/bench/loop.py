#!/usr/bin/env python3
"""Measure the loop of a test author: from saving an edit to Bazel's verdict, with a warm server.

    python3 tools/bench/loop.py [--runs 7] [--cache-hits] [--json FILE] [--bazel ./bazelw] [-- FLAG ...]
    python3 tools/bench/loop.py --cache-hits -- --config=rbe_local --//wheels:form=archive

Each run writes a new number into a test file, as an editor's save would, and times `bazel test` of its target.
Runs of the library's target take turns with runs of a plain `py_test` that only imports torch, the least that
any such test costs, so that the machine's noise is the same for both. The files are restored afterwards.

FLAGs are for `bazel test`, for example to run the tests on an executor. With `--cache-hits` the program also
times verdicts from the cache of the FLAGs, each time after a `bazel clean`.

The table on stdout has the median, the fastest and the slowest run in seconds; `ratio` is the library's
median over the peer's. Exit status 1 when a test fails.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import BenchError, ratio, summarise, table
from options import add_bazel, bench_parser, call_bazel, count, run_bench

FIXTURES = Path(__file__).resolve().parent / "loop"

_EDIT = re.compile(r"^EDIT = \d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and the file that is edited.

    Attributes:
        name: Its name in the table.
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
    """Restore the files in any case when the block ends."""
    before = {subject.source: subject.source.read_bytes() for subject in subjects}
    try:
        yield
    finally:
        for source, content in before.items():
            source.write_bytes(content)


@dataclass(frozen=True, slots=True)
class Bazel:
    """The way to start tests.

    Attributes:
        program: The program to start.
        flags: Flags of `bazel test`.
    """

    program: str
    flags: Sequence[str]

    def test(self, target: str, *, is_cached: bool) -> float:
        """Return the seconds until the verdict.

        Raises:
            BenchError: If the test does not pass, or the verdict comes from the wrong place.
        """
        elapsed_s, code, output = call_bazel(self.program, "test", "--color=no", "--curses=no", *self.flags, target)
        if code or ("(cached) PASSED" in output) != is_cached:
            wanted = "come from the cache" if is_cached else "run and pass"
            raise BenchError(f"{target} did not {wanted} (Bazel's exit code {code}):\n{output}")
        return elapsed_s


def save(source: Path, edit: int) -> None:
    """Write a new number into a file.

    Raises:
        BenchError: If it does not have exactly one line for the number.
    """
    text, count = _EDIT.subn(f"EDIT = {edit}", source.read_text(encoding="utf-8"))
    if count != 1:
        raise BenchError(f"{source} has {count} lines `EDIT = <number>`; one is needed.")
    source.write_text(text, encoding="utf-8")


def measure(bazel: Bazel, *, runs: int, cache_hits: bool) -> dict[str, dict[str, list[float]]]:
    """Return kind of verdict -> subject -> the seconds of every run. One more run of each comes first, uncounted."""
    subjects = (LIBRARY, PEER)
    # A new number each time, also after an earlier process: a verdict from the cache is no measurement.
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
                _, code, output = call_bazel(bazel.program, "clean")
                if code:
                    raise BenchError(f"`bazel clean` ended with {code}:\n{output}")
                hits[subject.name].append(bazel.test(subject.target, is_cached=True))
    return {"edit to verdict": edits, **({"cache hit after clean": hits} if cache_hits else {})}


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--runs", type=count, default=7, help="runs of each target, default 7")
    parser.add_argument("--cache-hits", action="store_true", help="also time verdicts from the cache of the flags")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="for `bazel test`, after --")
    add_bazel(parser)
    options = parser.parse_args()

    def report() -> tuple[str, dict[str, Any]]:
        timed = measure(Bazel(options.bazel, options.flags), runs=options.runs, cache_hits=options.cache_hits)
        text, ratios = "", {}
        for what, seconds in timed.items():
            found = {name: summarise(values) for name, values in seconds.items()}
            ratios[what] = ratio(found[LIBRARY.name], found[PEER.name])["medians"]
            rows = [[name, *(f"{value:.2f}" for value in summary.figures)] for name, summary in found.items()]
            rows.append(["ratio", f"{ratios[what]:.2f}", "", ""])
            text += table([f"{what}, s", "median", "min", "max"], rows)
        return text, {"seconds": timed, "ratios_of_medians": ratios, "runs": options.runs}

    return run_bench("loop", options.json, report)


if __name__ == "__main__":
    sys.exit(main())
