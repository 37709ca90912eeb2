#!/usr/bin/env python3
"""Measure the loop of a test author: from saving an edit to Bazel's verdict, with a warm server.

    python3 tools/bench/loop.py [--runs 7] [--cache-hits] [--consumer] [--bazel ./bazelw] [-- FLAG ...]
    python3 tools/bench/loop.py --cache-hits -- --config=rbe_local --//wheels:form=archive

Each run writes a new number into a test file, as an editor's save would, and times `bazel test` of its target.
Runs of the library's target take turns with runs of a plain `py_test` that only imports torch, the least that
any such test costs, so that the machine's noise is the same for both. The files are restored afterwards.

FLAGs are for `bazel test`, for example to run the tests on an executor. With `--cache-hits` the program also
times verdicts from the cache of the FLAGs, each time after a `bazel clean`.

With `--consumer`, runs in a consumer's repository take turns with them. docs/consumers.md shows that repository; its
files are pasted into an empty folder. Its first run, which installs the packages, is in the report, too.

The table on stdout has the median, the fastest and the slowest run in seconds; `ratio` is the library's
median over the peer's, and with a consumer the consumer's over the library's. Exit status 1 when a test fails.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import BenchError, ratio, summarise, table
from options import ROOT, add_bazel, bench_parser, call_bazel, count, run_bench

FIXTURES = Path(__file__).resolve().parent / "loop"

# Names in the table.
LIBRARY = "dist_py_test, 2 ranks"
PEER = "py_test, import torch"
CONSUMER = "dist_py_test, a consumer's"

_EDIT = re.compile(r"^EDIT = \d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bazel:
    """The way to start tests.

    Attributes:
        program: The program to start.
        flags: Flags of `bazel test`.
        workspace: The repository.
        startup: Options before the command.
    """

    program: str
    flags: Sequence[str]
    workspace: Path = ROOT
    startup: tuple[str, ...] = ()

    def call(self, *arguments: str) -> tuple[float, int, str]:
        """Run a command; return its seconds, its exit status and its output."""
        return call_bazel(self.program, *self.startup, *arguments, workspace=self.workspace)

    def test(self, target: str, *, is_cached: bool) -> float:
        """Return the seconds until the verdict.

        Raises:
            BenchError: If the test does not pass, or the verdict comes from the wrong place.
        """
        elapsed_s, code, output = self.call("test", "--color=no", "--curses=no", *self.flags, target)
        if code or ("(cached) PASSED" in output) != is_cached:
            wanted = "come from the cache" if is_cached else "run and pass"
            raise BenchError(f"{target} did not {wanted} (Bazel's exit code {code}):\n{output}")
        return elapsed_s


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and the file that is edited.

    Attributes:
        name: Its name in the table.
        target: Label of the test.
        source: File with a line `EDIT = <number>`.
        bazel: Starts it.
    """

    name: str
    target: str
    source: Path
    bazel: Bazel


def own_subjects(bazel: Bazel) -> list[Subject]:
    """Return the library's test and its peer, in this repository."""
    return [
        Subject(LIBRARY, "//tools/bench/loop:edited_gloo", FIXTURES / "test_edited.py", bazel),
        Subject(PEER, "//tools/bench/loop:peer", FIXTURES / "import_torch.py", bazel),
    ]


# The test of the library's own measurement, in a consumer's words.
_CONSUMER_BUILD = """\
load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")

dist_py_test(
    name = "edited",
    size = "small",
    srcs = ["test_edited.py"],
    backends = ["gloo"],
    world_size = 2,
    deps = ["@pypi//torch"],
)
"""


@contextmanager
def consumer_subject(bazel: Bazel) -> Iterator[Subject]:
    """Make a consumer's repository from docs/consumers.md, with a server of its own; both go after the block."""
    # The programs of the other folders are modules of the repository's root.
    sys.path.insert(0, str(ROOT))
    from e2e.pages import CONSUMERS, make_mine
    from tests.support.nested_bazel import scratch_folder

    with scratch_folder("loop.consumer") as folder:
        workspace = make_mine(CONSUMERS, folder)
        source = workspace / "loop" / "test_edited.py"
        source.parent.mkdir()
        shutil.copyfile(FIXTURES / "test_edited.py", source)
        (source.parent / "BUILD.bazel").write_text(_CONSUMER_BUILD, encoding="utf-8")
        startup = (f"--output_user_root={folder}/output",)
        flags = ("--lockfile_mode=off", *bazel.flags)
        theirs = Bazel(bazel.program, flags, workspace, startup)
        try:
            yield Subject(CONSUMER, "//loop:edited_gloo", source, theirs)
        finally:
            theirs.call("shutdown")


@contextmanager
def restored(subjects: Sequence[Subject]) -> Iterator[None]:
    """Restore the files in any case when the block ends."""
    before = {subject.source: subject.source.read_bytes() for subject in subjects}
    try:
        yield
    finally:
        for source, content in before.items():
            source.write_bytes(content)


def save(source: Path, edit: int) -> None:
    """Write a new number into a file.

    Raises:
        BenchError: If it does not have exactly one line for the number.
    """
    text, count = _EDIT.subn(f"EDIT = {edit}", source.read_text(encoding="utf-8"))
    if count != 1:
        raise BenchError(f"{source} has {count} lines `EDIT = <number>`; one is needed.")
    source.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Timed:
    """What was measured, in seconds.

    Attributes:
        first: Subject -> its first run, which installs and compiles what is not there.
        verdicts: Kind of verdict -> subject -> every later run.
    """

    first: dict[str, float]
    verdicts: dict[str, dict[str, list[float]]]


def measure(subjects: Sequence[Subject], *, runs: int, cache_hits: bool) -> Timed:
    """Measure the subjects, which take turns. One more run of each comes first.

    Raises:
        BenchError: If a test does not pass, or the verdict comes from the wrong place.
    """
    # A new number each time, also after an earlier process: a verdict from the cache is no measurement.
    edit = time.time_ns()
    first: dict[str, float] = {}
    edits: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    hits: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    with restored(subjects):
        for run in range(runs + 1):
            for subject in subjects:
                save(subject.source, edit + run)
                elapsed_s = subject.bazel.test(subject.target, is_cached=False)
                if run > 0:
                    edits[subject.name].append(elapsed_s)
                else:
                    first[subject.name] = elapsed_s
        for _ in range(runs if cache_hits else 0):
            for subject in subjects:
                _, code, output = subject.bazel.call("clean")
                if code:
                    raise BenchError(f"`bazel clean` ended with {code}:\n{output}")
                hits[subject.name].append(subject.bazel.test(subject.target, is_cached=True))
    return Timed(first, {"edit to verdict": edits, **({"cache hit after clean": hits} if cache_hits else {})})


def tables(timed: Timed) -> str:
    """Return the tables."""
    text = ""
    for what, seconds in timed.verdicts.items():
        found = {name: summarise(values) for name, values in seconds.items()}
        rows = [[name, *(f"{value:.2f}" for value in summary.figures)] for name, summary in found.items()]
        for one, other in ((LIBRARY, PEER), (CONSUMER, LIBRARY)):
            if one in found:
                medians = ratio(found[one], found[other])["medians"]
                rows.append([f"ratio {one} / {other}", f"{medians:.2f}", "", ""])
        text += table([f"{what}, s", "median", "min", "max"], rows)
    return text + "".join(f"first run, {name}: {value:.0f} s\n" for name, value in timed.first.items())


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--runs", type=count, default=7, help="runs of each target, default 7")
    parser.add_argument("--cache-hits", action="store_true", help="also time verdicts from the cache of the flags")
    parser.add_argument("--consumer", action="store_true", help="also measure a consumer's repository")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="for `bazel test`, after --")
    add_bazel(parser)
    options = parser.parse_args()

    def report() -> str:
        bazel = Bazel(options.bazel, options.flags)
        with ExitStack() as stack:
            subjects = own_subjects(bazel)
            if options.consumer:
                subjects.append(stack.enter_context(consumer_subject(bazel)))
            timed = measure(subjects, runs=options.runs, cache_hits=options.cache_hits)
        return tables(timed)

    return run_bench("loop", report)


if __name__ == "__main__":
    sys.exit(main())
