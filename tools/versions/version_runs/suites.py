"""Runs the suites in an environment, each within a limit of time."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path

from version_runs.commands import Ended, run
from version_runs.environments import Environment

# Suite -> its limit: about four times its duration on 2 free cores. Seconds.
LIMITS_S = {"unit": 900.0, "threaded": 400.0, "compat": 1200.0, "process": 3600.0}
# Failures with names and messages in the table; the others are counted.
_NAMED_FAILURES = 12
_MESSAGE_LENGTH = 160
_FOLDERS = re.compile(r"/(?:[\w.+~-]+/)+")


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What became of one suite.

    Attributes:
        passed: Number of passed tests.
        failed: Number of failed tests, errors included.
        skipped: Number of skipped tests.
        seconds: Duration. Seconds.
        end: "whole" if every test had its turn; otherwise why not.
        failures: Names and messages of the first failures.
    """

    passed: int
    failed: int
    skipped: int
    seconds: int
    end: str
    failures: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, object]:
        """Return it as the table keeps it."""
        return {**asdict(self), "failures": [list(failure) for failure in self.failures]}


def run_suite(suite: str, environment: Environment, tree: Path, folder: Path) -> SuiteResult:
    """Run one suite.

    Args:
        suite: A key of `LIMITS_S`.
        environment: Where it runs.
        tree: The repository, or a copy of its files.
        folder: Place for its result file and its log.
    """
    results = folder / f"{suite}.xml"
    results.unlink(missing_ok=True)
    started = time.monotonic()
    # Without xdist, whose workers have threads: ranks are not forked from such a process, and `tests/process` fails.
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}", "-o", "junit_family=xunit2"]
    ended = run(
        [environment.python, "-m", "pytest", f"tests/{suite}", *options],
        LIMITS_S[suite],
        environment={"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", **environment.variables},
        cwd=tree,
    )
    (folder / f"{suite}.log").write_text(ended.log, encoding="utf-8")
    return read_results(results, ended, round(time.monotonic() - started))


def read_results(results: Path, ended: Ended, seconds: int) -> SuiteResult:
    """Return what pytest's result file and its exit status say.

    Args:
        results: The JUnit file; it is missing if pytest was killed.
        ended: How pytest ended.
        seconds: How long it ran. Seconds.
    """
    end = "whole"
    if not ended.in_time:
        end = "stopped at its limit"
    # 0: all passed; 1: some failed. Everything else means that tests are missing from the file.
    elif ended.status not in (0, 1):
        end = f"pytest ended with status {ended.status}: {ended.last_lines}"
    if not results.exists():
        return SuiteResult(0, 0, 0, seconds, end if end != "whole" else "no result file", ())
    passed = failed = skipped = 0
    failures = []
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        problem = case.find("failure")
        problem = case.find("error") if problem is None else problem
        if problem is not None:
            failed += 1
            # Without the folders of this machine.
            message = _FOLDERS.sub("", " ".join((problem.get("message") or "").split()))[:_MESSAGE_LENGTH]
            failures.append((f"{case.get('classname')}.{case.get('name')}", message))
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return SuiteResult(passed, failed, skipped, seconds, end, tuple(failures[:_NAMED_FAILURES]))
