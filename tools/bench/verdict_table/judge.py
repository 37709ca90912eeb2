"""Reads a suite's result of its case, and judges it. Pure functions: text and times in, findings out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from verdict_table.cases import Case
from verdict_table.watch import Observed


@dataclass(frozen=True, slots=True)
class Dialect:
    """The output format of one harness."""

    name: str  # name of the harness
    summary: re.Pattern[bytes]  # the line that it prints when all verdicts are known
    status: re.Pattern[str]  # the line of a test's verdict: the test's name, any text, the verdict
    failure: re.Pattern[str]  # the heading of a failed test, for a verdict that the ranks' output has damaged
    report: re.Pattern[str]  # the start of the part that explains the failure; the log comes before it
    blame: re.Pattern[str]  # the ranks that it names as the cause
    limit: re.Pattern[str]  # its words if only a limit has ended the test


TORCH = Dialect(
    "torch",
    re.compile(rb"^Ran \d+ tests? in", re.MULTILINE),
    # Ranks write to the same stream, so there may be any number of lines in between.
    re.compile(r"^(test_\w+) \(.*?(?:^|\.\.\. )(ok|ERROR|FAIL|skipped .*?)$", re.MULTILINE | re.DOTALL),
    re.compile(r"^(?:ERROR|FAIL): (test_\w+)", re.MULTILINE),
    re.compile(r"^={70}$", re.MULTILINE),
    re.compile(r"Process (\d+) (?:exited with error|terminated or timed out)"),
    # Also the ranks' own words: at the limit, the parent may fail because of a message that they send.
    re.compile(r"Timing out after|timed out after|Event\.GET_TRACEBACK"),
)
LIBRARY = Dialect(
    "dist_testing",
    re.compile(rb"^=+ .*\d+ (?:passed|failed|skipped|error).* in [\d.]+s.*=+$", re.MULTILINE),
    re.compile(r"::(test_\w+) (PASSED|FAILED|SKIPPED|ERROR)", re.MULTILINE),
    re.compile(r"^(?:ERROR|FAILED) \S+::(test_\w+)", re.MULTILINE),
    re.compile(r"^=+ (?:FAILURES|ERRORS|short test summary info|dist_testing.*) =+$", re.MULTILINE),
    re.compile(r"(?:\(world of \d+\): |[:;] (?=rank \d+ skipped))ranks? (\d+(?:, \d+)*)"),
    re.compile(r"at the deadline"),
)
_WORDS = {"ok": "passed", "error": "failed", "fail": "failed"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A harness's result of a case."""

    verdict: str  # "passed", "skipped", "failed", or "" if there was none
    next_verdict: str  # verdict of the next test of the class; "" if there was none
    # From the fault to the printed summary, or from the signal to the runner's end; None if it never came.
    seconds: float | None
    at_limit: bool  # whether only a limit ended the test
    exits: bool  # whether the runner ended by itself
    blamed: tuple[int, ...]  # the ranks that the report names as the cause
    told: str  # the part of the output that describes the fault: "report", "log", or "" for none
    cleanups: int  # number of ranks that ran their clean-ups
    left: Mapping[str, int]  # process that was left -> number of such processes
    files: Sequence[str]  # names of temporary files that were left
    wrong: tuple[str, ...]  # the wrong ones of "verdict", "message" and "left"

    @property
    def is_right(self) -> bool:
        """Whether everything is right."""
        return not self.wrong


class NothingHappenedError(Exception):
    """The fault did not happen, so there is nothing to judge."""


def judge(case: Case, dialect: Dialect, observed: Observed) -> Finding:
    """Judge a harness's result of a case."""
    faults = [told["at_s"] for told in observed.told("fault")]
    from_s = observed.signalled_s if case.runner_signal else max(faults, default=None)
    if from_s is None or len(faults) < case.fault_count:
        raise NothingHappenedError(f"{case.key}, {dialect.name}: nothing happened. The log:\n{observed.log}")
    to_s = observed.ended_s if case.runner_signal else observed.verdict_s
    statuses = _statuses(dialect, observed.log)
    begin = dialect.report.search(observed.log)
    report = "" if begin is None else observed.log[begin.start() :]
    # The skip reason is printed with the verdict.
    report += "\n".join(f"\n{test}: {status}" for test, status in dialect.status.findall(observed.log))
    finding = Finding(
        verdict=statuses.get("test_1_case", ""),
        next_verdict=statuses.get("test_2_next", ""),
        seconds=None if to_s is None else to_s - from_s,
        at_limit=dialect.limit.search(observed.log) is not None,
        exits=observed.ended_s is not None,
        blamed=_blamed(dialect, report),
        told=_told(case, report if case.verdicts else observed.log, observed.log),
        cleanups=len(observed.told("cleanup")),
        left=dict(Counter(observed.left)),
        files=observed.files,
        wrong=(),
    )
    return replace(finding, wrong=tuple(_wrong(case, finding)))


def _statuses(dialect: Dialect, log: str) -> dict[str, str]:
    statuses: dict[str, str] = {}
    for test, status in dialect.status.findall(log):
        word = status.split()[0].lower()
        # A message after the test, from its tear-down, can only make the verdict worse.
        statuses[test] = _WORDS.get(word, word)
    return statuses | dict.fromkeys(dialect.failure.findall(log), "failed")


def _blamed(dialect: Dialect, report: str) -> tuple[int, ...]:
    blamed: set[int] = set()
    for ranks in dialect.blame.findall(report):
        blamed.update(map(int, ranks.split(", ")))
    return tuple(sorted(blamed))


def _told(case: Case, report: str, log: str) -> str:
    if not case.said:
        return ""
    if re.search(case.said, report):
        return "report"
    return "log" if re.search(case.said, log) else ""


def _wrong(case: Case, finding: Finding) -> Iterator[str]:
    has_ended = finding.seconds is not None and finding.exits
    is_right = not case.verdicts or finding.verdict in case.verdicts
    if not (has_ended and is_right and (not case.is_continuous or finding.next_verdict == "passed")):
        yield "verdict"
    # A skip needs a reason and no culprit; a correct pass needs neither.
    has_passed = finding.verdict == "passed" and is_right
    is_named = finding.verdict == "skipped" or has_passed or not case.culprits or finding.blamed == case.culprits
    is_told = has_passed or not case.said or finding.told == "report"
    if not (is_named and is_told and (not case.cleanups or finding.cleanups == case.world_size)):
        yield "message"
    if finding.left or finding.files:
        yield "left"
