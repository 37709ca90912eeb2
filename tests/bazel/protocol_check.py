"""Check how a real Bazel handles runs that hang, skip, shard and measure: `python3 -m tests.bazel.protocol_check`.

Bazel cannot run inside Bazel's sandbox, so this is a program and not a test. It uses this workspace and its server,
because the wheels are installed there already; the results go to the usual folders. Exit status 0 when all checks pass.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.nested_bazel import ROOT, scratch_folder

_PACKAGE = "//tests/bazel:"
# Bazel's timeout for the target that hangs. Half of it goes to the hanging case, and the others need enough time on a
# busy machine.
_TIMEOUT_S = 60
# A target that asks for two GPUs. No machine has them: their device nodes are made up.
_NO_GPUS = "--test_env=CUDA_VISIBLE_DEVICES="


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended.

    Attributes:
        status: Its exit status.
        output: All that it printed.
    """

    status: int
    output: str

    def result(self, target: str) -> str:
        """Return Bazel's result of a target: "PASSED", "(cached) PASSED", "FAILED", ...; without details."""
        found = re.findall(rf"^{re.escape(_PACKAGE + target)} +((?:\(cached\) )?[A-Z]+)", self.output, re.MULTILINE)
        return found[-1] if found else "not there"


class ComplaintError(Exception):
    """A check has failed."""


def _bazel(command: str, *arguments: str) -> Done:
    done = subprocess.run(
        [str(ROOT / "bazelw"), command, "--color=no", "--curses=no", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout)


def _expect(what: str, expected: object, found: object, output: str = "") -> None:
    if expected != found:
        sys.stderr.write(output)
        raise ComplaintError(f"{what}: expected {expected!r}, found {found!r}")


@functools.cache
def _testlogs() -> Path:
    # Not the link in the source tree: it points to the output base that was used last.
    done = subprocess.run(
        [str(ROOT / "bazelw"), "info", "bazel-testlogs"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(done.stdout.strip())


def _logs(target: str) -> Path:
    return _testlogs() / "tests" / "bazel" / target


def _outcomes(file: Path) -> dict[str, str]:
    """Return case name -> outcome, in the words of the XML."""
    outcomes = {}
    for case in ElementTree.parse(file).iter("testcase"):
        worse = [child.tag for child in case if child.tag not in ("properties", "system-out")]
        outcomes[case.get("name", "")] = worse[0] if worse else "passed"
    return outcomes


def _check_hang(_scratch: Path) -> None:
    """The target ends before Bazel's timer, with all its results."""
    done = _bazel("test", f"--test_timeout={_TIMEOUT_S}", "--nocache_test_results", f"{_PACKAGE}hanging_gloo")
    _expect("a hang fails its target and does not time out", "FAILED", done.result("hanging_gloo"), done.output)
    log = (_logs("hanging_gloo") / "test.log").read_text(encoding="utf-8", errors="replace")
    for part in ("stacks of rank(s) 0, 1:", "in test_hangs"):
        _expect(f"the log has {part!r}", True, part in log, log)
    _expect("Bazel's timer has not gone off", False, "Test timed out" in log, log)
    _expect(
        "results around a hang",
        {"test_before": "passed", "test_hangs": "failure", "test_after[0]": "passed", "test_after[1]": "passed"},
        _outcomes(_logs("hanging_gloo") / "test.xml"),
    )


def _check_shards(_scratch: Path) -> None:
    """The shards are balanced by the file of timings, and each run of a target has results of its own."""
    done = _bazel("test", "--nocache_test_results", f"{_PACKAGE}counting_gloo")
    _expect("shards pass", "PASSED", done.result("counting_gloo"), done.output)
    shards = [list(_outcomes(_logs("counting_gloo") / f"shard_{index}_of_2" / "test.xml")) for index in (1, 2)]
    _expect("shards", [["test_long"], [f"test_quick[{number}]" for number in range(4)]], shards)
    done = _bazel(
        "test",
        "--nocache_test_results",
        "--runs_per_test=2",
        "--runs_per_test_detects_flakes",
        "--test_sharding_strategy=disabled",
        f"{_PACKAGE}counting_gloo",
    )
    _expect("a failure in one of two runs", "FLAKY", done.result("counting_gloo"), done.output)
    longs = [_outcomes(_logs("counting_gloo") / f"run_{number}_of_2" / "test.xml")["test_long"] for number in (1, 2)]
    _expect("results of two runs", ["failure", "passed"], longs)
    done = _bazel(
        "test",
        "--nocache_test_results",
        "--flaky_test_attempts=2",
        "--test_env=TEST_RUN_NUMBER=1",
        "--test_filter=test_long",
        "--test_sharding_strategy=disabled",
        f"{_PACKAGE}counting_gloo",
    )
    _expect("a failure in every attempt is a failure", "FAILED", done.result("counting_gloo"), done.output)
    first = _logs("counting_gloo") / "test_attempts" / "attempt_1.xml"
    _expect("results of the first attempt", {"test_long": "failure"}, _outcomes(first))


def _check_coverage(_scratch: Path) -> None:
    """The target's coverage report has the lines that only ranks execute."""
    done = _bazel("coverage", "--test_sharding_strategy=disabled", f"{_PACKAGE}counting_gloo")
    _expect("coverage passes", "PASSED", done.result("counting_gloo"), done.output)
    report = (_logs("counting_gloo") / "coverage.dat").read_text(encoding="utf-8")
    section = report.partition("SF:tests/bazel/counted.py\n")[2].partition("end_of_record")[0]
    hits = {int(line): int(count) > 0 for line, count in re.findall(r"^DA:(\d+),(\d+)", section, re.MULTILINE)}
    source = (ROOT / "tests" / "bazel" / "counted.py").read_text(encoding="utf-8").splitlines()
    words = ("first", "second", "never")
    found = {
        word: hits.get(number)
        for number, line in enumerate(source, start=1)
        for word in words
        if line.strip() == f'return "{word}"'
    }
    _expect("lines of ranks", {"first": True, "second": True, "never": False}, found, report)


def _check_skips(scratch: Path) -> None:
    """A skipped run is no result for a promise of the hardware, and it is not hidden."""
    host = scratch / "host"
    (host / "dev").mkdir(parents=True)
    for number in range(2):
        (host / "dev" / f"nvidia{number}").touch()
    cache = f"--disk_cache={scratch / 'cache'}"
    # Bazel may remember the target from an earlier check.
    new = f"--test_env=OF_CHECK={scratch}"
    seen = ("test", cache, new, _NO_GPUS, f"--repo_env=DIST_TESTING_HOST_ROOT={host}", "--local_resources=gpu=2")
    promised = (*seen, "--//dist_testing/config:gpus=2")
    target = f"{_PACKAGE}skipping_nccl"
    for what, options, expected in (
        ("nothing promised", seen, "PASSED"),
        ("the same again", seen, "(cached) PASSED"),
        ("promised, with a skipped run in the cache", promised, "FAILED"),
        ("promised again: a failure is not cached", promised, "FAILED"),
        # Bazel now remembers another action for the target, so this result is from the disk cache.
        ("nothing promised again", seen, "(cached) PASSED"),
    ):
        done = _bazel(*options, target)
        _expect(f"skips, {what}", expected, done.result("skipping_nccl"), done.output)
    log = (_logs("skipping_nccl") / "test.log").read_text(encoding="utf-8")
    first = next(line for line in log.splitlines() if line.startswith("dist_testing: "))
    _expect("the first line of the log", True, "EVERY CASE WAS SKIPPED: Need at least 2 CUDA devices" in first, log)
    events = scratch / "events.json"
    done = _bazel(*seen, f"--build_event_json_file={events}", target, f"{_PACKAGE}counting_gloo")
    _expect("a target that runs, beside one that does not", 0, done.status, done.output)
    listed = _bazel("run", "//tools/ci", "--", "ran-nothing", str(events))
    for part in ("1 of 2 targets ran nothing", f"{target}: 1 case(s)", "1 x Need at least 2 CUDA devices (found 0"):
        _expect(f"ran-nothing says {part!r}", True, part in listed.output, listed.output)


def _check_timings(scratch: Path) -> None:
    """Timings are made from results."""
    out = scratch / "timings.json"
    done = _bazel("run", "//tools/ci", "--", "timings", f"--out={out}", str(_logs("counting_gloo")))
    _expect("timings are written", 0, done.status, done.output)
    cases = json.loads(out.read_text(encoding="utf-8"))["targets"][f"{_PACKAGE}counting_gloo"]
    _expect("a case of them", True, "tests.bazel.counting.test_quick[3]" in cases, str(cases))


# In this order: the timings are made from the results of the shards.
_CHECKS: dict[str, Callable[[Path], None]] = {
    "a hang": _check_hang,
    "shards and runs": _check_shards,
    "timings": _check_timings,
    "skips": _check_skips,
    "coverage": _check_coverage,
}


def main() -> int:
    """Run the checks, and report on stderr."""
    try:
        with scratch_folder("protocol_check") as scratch:
            for name, check in _CHECKS.items():
                start = time.monotonic()
                check(scratch)
                sys.stderr.write(f"protocol_check.py: {name}: as expected after {time.monotonic() - start:.0f} s\n")
    except ComplaintError as complaint:
        sys.stderr.write(f"protocol_check.py: {complaint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
