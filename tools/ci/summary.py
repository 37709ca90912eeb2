"""Sums up a CI job: passed, failed and skipped tests, and where results came from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from build_events import GOOD, Action, Attempt, Invocation

from dist_testing.core.bazel.junit import tag_of
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import BAD, CaseRecord
from dist_testing.report.result_xml import read_xml

# JUnit's element of a failure -> the word of the summary.
_WORDS = {"failure": "failed", "error": "error"}
# Lines shown for one failing target.
_FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one invocation.

    Attributes:
        statuses: Target -> Bazel's word for its end.
        bad_targets: Targets that did not pass or were not built -> Bazel's word for their end.
        flaky: Targets that passed after a failure.
        failures: Target -> its failed cases with their messages, including those of repeated attempts.
        skips: Skip reason -> number of cases.
        idle: Targets of which no case ran.
        incompatible: Targets that Bazel itself has skipped.
        unread: Targets that passed by Bazel's word but have no readable results -> why.
        cases: Outcome -> number of cases; of a repeated case the last attempt counts.
        origins: Origin of the results of test actions -> number of actions.
        exit_code: Bazel's exit status, by the build events.
        exit_name: Bazel's name for it.
        is_complete: Whether the build events are complete.
    """

    statuses: Mapping[str, int]
    bad_targets: Mapping[str, str]
    flaky: Sequence[str]
    failures: Mapping[str, Sequence[str]]
    skips: Mapping[str, int]
    idle: Sequence[str]
    incompatible: Sequence[str]
    unread: Mapping[str, str]
    cases: Mapping[str, int]
    origins: Mapping[str, int]
    exit_code: int | None
    exit_name: str
    is_complete: bool


def summarise(invocation: Invocation) -> Summary:
    """Sum up an invocation and its test.xml files."""
    statuses = dict(invocation.summaries)
    # A target that was not built has no summary, or one that says so.
    bad = dict.fromkeys(invocation.broken, "NOT BUILT") | {
        label: status for label, status in statuses.items() if status not in GOOD
    }
    flaky = sorted(label for label, status in statuses.items() if status == "FLAKY")
    # Without repeated lines, in order: attempts often fail in the same way.
    failures: dict[str, dict[str, None]] = defaultdict(dict)
    skips: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    unread: dict[str, str] = {}
    # Target with results on this machine -> whether one of its cases ran.
    busy: dict[str, bool] = {}
    counting = set(map(id, _last_attempts(invocation.attempts)))
    for attempt in invocation.attempts:
        target = attempt.target
        found, complaint = _cases(attempt)
        lines = [f"{case.name}: {_first_line(case.message)}" for case in found if case.status in BAD]
        if not lines and attempt.status not in GOOD:
            lines = [f"attempt {attempt.attempt}: {attempt.status}; {complaint or 'no case says why'}"]
        failures[target].update(dict.fromkeys(lines))
        if id(attempt) not in counting:
            continue
        if complaint and target not in bad:
            unread[target] = complaint
        if not complaint:
            busy[target] = busy.get(target, False) or any(case.has_run for case in found)
        for case in found:
            cases[_WORDS.get(tag_of(case), "passed") if case.has_run else "skipped"] += 1
            if not case.has_run:
                skips[case.message or "no reason given"] += 1
    for label, why in invocation.broken.items():
        if why:
            failures[label].setdefault(_first_line(why))
    return Summary(
        statuses=Counter(statuses.values()),
        bad_targets=bad,
        flaky=flaky,
        failures={label: list(lines) for label, lines in failures.items()},
        skips=skips,
        idle=sorted(label for label, is_busy in busy.items() if not is_busy and label not in bad),
        incompatible=invocation.incompatible,
        unread=unread,
        cases=cases,
        origins=Counter(_origin(attempt) for attempt in invocation.attempts),
        exit_code=invocation.exit_code,
        exit_name=invocation.exit_name,
        is_complete=invocation.is_complete,
    )


def _last_attempts(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return, for every test action, the attempt whose result counts."""
    last: dict[Action, Attempt] = {}
    for attempt in attempts:
        if attempt.action not in last or last[attempt.action].attempt < attempt.attempt:
            last[attempt.action] = attempt
    return list(last.values())


def _cases(attempt: Attempt) -> tuple[Sequence[CaseRecord], str]:
    """Return the cases of an attempt, or why they cannot be read."""
    if attempt.xml is None:
        return (), "its test.xml is not on this machine"
    try:
        return [case for suite in read_xml(attempt.xml) for case in suite.cases], ""
    except ReportError as error:
        return (), _first_line(str(error))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _origin(attempt: Attempt) -> str:
    if attempt.cached:
        return "remote cache" if attempt.cached == "remote" else "unchanged here"
    return f"ran ({attempt.strategy})" if attempt.strategy else "ran"


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the lines of the summary, without the verdict."""
    yield ""
    for label, status in sorted(summary.bad_targets.items()):
        yield f"{status}  {label}"
        yield from _failure_lines(summary, label)
    for label in summary.flaky:
        yield f"FLAKY  {label}: passed after a failure"
        yield from _failure_lines(summary, label)
    for label in summary.idle:
        yield f"RAN NOTHING  {label}"
    for label, why in sorted(summary.unread.items()):
        yield f"NO RESULTS  {label}: {why}"
    for label in summary.incompatible:
        yield f"SKIPPED BY BAZEL  {label}: not for this platform or its GPUs"
    if summary.skips:
        yield "skipped cases:"
        for reason, count in sorted(summary.skips.items(), key=lambda item: (-item[1], item[0])):
            yield f"    {count} x {reason}"
    yield f"test actions: {_counts(summary.origins)}"
    yield f"cases: {_counts(summary.cases)}"
    passed = sum(summary.statuses.get(status, 0) for status in GOOD)
    yield (
        f"targets: {passed} passed, {len(summary.bad_targets)} did not pass, "
        f"{len(summary.incompatible)} skipped by Bazel, {len(summary.idle)} ran nothing"
    )


def _failure_lines(summary: Summary, label: str) -> Iterator[str]:
    failures = summary.failures.get(label, ())
    for failure in failures[:_FAILURES_SHOWN]:
        yield f"    {failure}"
    if len(failures) > _FAILURES_SHOWN:
        yield f"    and {len(failures) - _FAILURES_SHOWN} more"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
