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
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import BenchError, summarise, table
from options import ROOT, add_bazel, bench_parser, count, parse, run_bench

FIXTURES = Path(__file__).resolve().parent / "loop"

# Names in the table.
LIBRARY = "dist_py_test, 2 ranks"
PEER = "py_test, import torch"
CONSUMER = "dist_py_test, a consumer's"

_EDIT = re.compile(r"^EDIT = \d+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and the file that is edited."""

    name: str  # its name in the table
    target: str  # label of the test
    source: Path  # file with a line `EDIT = <number>`
    workspace: Path  # its repository
    bazel: Sequence[str]  # the program to start, with options before the command
    flags: Sequence[str]  # flags of `bazel test`

    def call(self, *arguments: str) -> tuple[float, int, str]:
        """Run a command of Bazel; return its seconds, its exit status and its output."""
        start = time.monotonic()
        done = subprocess.run(
            [*self.bazel, *arguments],
            cwd=self.workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return time.monotonic() - start, done.returncode, done.stdout

    def test(self, *, is_cached: bool) -> float:
        """Return the seconds until the verdict."""
        elapsed_s, code, output = self.call("test", "--color=no", "--curses=no", *self.flags, self.target)
        if code or ("(cached) PASSED" in output) != is_cached:
            wanted = "come from the cache" if is_cached else "run and pass"
            raise BenchError(f"{self.target} did not {wanted} (Bazel's exit code {code}):\n{output}")
        return elapsed_s

    def save(self, edit: int) -> None:
        """Write a new number into the file."""
        text, count = _EDIT.subn(f"EDIT = {edit}", self.source.read_text(encoding="utf-8"))
        if count != 1:
            raise BenchError(f"{self.source} has {count} lines `EDIT = <number>`; one is needed.")
        self.source.write_text(text, encoding="utf-8")


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
def consumer_subject(bazel: str, flags: Sequence[str]) -> Iterator[Subject]:
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
        own_server = (bazel, f"--output_user_root={folder}/output")
        subject = Subject(
            CONSUMER, "//loop:edited_gloo", source, workspace, own_server, ("--lockfile_mode=off", *flags)
        )
        try:
            yield subject
        finally:
            subject.call("shutdown")


Seconds = dict[str, list[float]]


def measure(subjects: Sequence[Subject], *, runs: int, cache_hits: bool) -> tuple[Seconds, Seconds]:
    """Measure the subjects, which take turns.

    Returns:
        The seconds from each edit to the verdict, by subject; the first run installs and compiles what is not there,
        and `runs` more follow. Then the seconds of verdicts from the cache.
    """
    # A new number each time, also after an earlier process: a verdict from the cache is no measurement.
    edit = time.time_ns()
    edits: Seconds = {subject.name: [] for subject in subjects}
    hits: Seconds = {subject.name: [] for subject in subjects}
    before = {subject.source: subject.source.read_bytes() for subject in subjects}
    try:
        for run in range(runs + 1):
            for subject in subjects:
                subject.save(edit + run)
                edits[subject.name].append(subject.test(is_cached=False))
        for _ in range(runs if cache_hits else 0):
            for subject in subjects:
                _, code, output = subject.call("clean")
                if code:
                    raise BenchError(f"`bazel clean` ended with {code}:\n{output}")
                hits[subject.name].append(subject.test(is_cached=True))
    finally:
        for source, content in before.items():
            source.write_bytes(content)
    return edits, hits


def seconds_table(what: str, seconds: Seconds) -> str:
    """Return the table of one kind of verdict."""
    found = {name: summarise(values) for name, values in seconds.items()}
    rows = [[name, *(f"{value:.2f}" for value in summary)] for name, summary in found.items()]
    for one, other in ((LIBRARY, PEER), (CONSUMER, LIBRARY)):
        if one in found:
            rows.append([f"ratio {one} / {other}", f"{found[one].median / found[other].median:.2f}", "", ""])
    return table([f"{what}, s", "median", "min", "max"], rows)


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--runs", type=count, default=7, help="runs of each target, default 7")
    parser.add_argument("--cache-hits", action="store_true", help="also time verdicts from the cache of the flags")
    parser.add_argument("--consumer", action="store_true", help="also measure a consumer's repository")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="for `bazel test`, after --")
    add_bazel(parser)
    options = parse(parser)

    def report() -> str:
        subjects = [
            Subject(name, f"//tools/bench/loop:{target}", FIXTURES / source, ROOT, (options.bazel,), options.flags)
            for name, target, source in ((LIBRARY, "edited_gloo", "test_edited.py"), (PEER, "peer", "import_torch.py"))
        ]
        with ExitStack() as stack:
            if options.consumer:
                subjects.append(stack.enter_context(consumer_subject(options.bazel, options.flags)))
            edits, hits = measure(subjects, runs=options.runs, cache_hits=options.cache_hits)
        text = seconds_table("edit to verdict", {name: values[1:] for name, values in edits.items()})
        if options.cache_hits:
            text += seconds_table("cache hit after clean", hits)
        return text + "".join(f"first run, {name}: {values[0]:.0f} s\n" for name, values in edits.items())

    return run_bench("loop", report)


if __name__ == "__main__":
    sys.exit(main())
