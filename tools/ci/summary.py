"""Sums up a CI job: passed, failed and skipped tests, and where results came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from build_events import GOOD, Invocation

from dist_testing.core.bazel.junit import tag_of
from dist_testing.core.ground.record import BAD, CaseRecord
from dist_testing.report.facts import final_runs, ledger
from dist_testing.report.model import Report, RunRecord

# JUnit's element of a failure -> the word of the summary.
_WORDS = {"failure": "failed", "error": "error"}
# Lines shown for one failing target.
_FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one invocation."""

    invocation: Invocation  # what its build events say
    report: Report  # the same with the results of its tests
    bad_targets: Mapping[str, str]  # targets that did not pass or were not built -> Bazel's word for their end
    idle: Sequence[str]  # targets of which no case ran
    unread: Sequence[str]  # targets that passed by Bazel's word but have no readable results


def summarise(invocation: Invocation, report: Report) -> Summary:
    """Sum up an invocation."""
    # A target that was not built has no summary, or one that says so.
    bad = dict.fromkeys(invocation.broken, "NOT BUILT") | {
        label: status for label, status in invocation.summaries.items() if status not in GOOD
    }

    def good_targets(kind: str) -> list[str]:
        return sorted({line.target for line in ledger(report) if line.kind == kind and line.target not in bad})

    return Summary(invocation, report, bad, good_targets("ran nothing"), good_targets("no results"))


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the lines of the summary, without the verdict."""
    invocation, report = summary.invocation, summary.report
    yield ""
    for label, status in sorted(summary.bad_targets.items()):
        yield f"{status}  {label}"
        yield from _failure_lines(summary, label)
    for label in sorted(label for label, status in invocation.summaries.items() if status == "FLAKY"):
        yield f"FLAKY  {label}: passed after a failure"
        yield from _failure_lines(summary, label)
    for label in summary.idle:
        yield f"RAN NOTHING  {label}"
    for label in summary.unread:
        why = next((one.text for one in report.problems if f"{one.subject} ".startswith(f"{label} ")), "unknown")
        yield f"NO RESULTS  {label}: {_first_line(why)}"
    for label in invocation.incompatible:
        yield f"SKIPPED BY BAZEL  {label}: not for this platform or its GPUs"
    cases = [case for run in final_runs(report) for case in run.cases]
    if skips := Counter(case.message or "no reason given" for case in cases if not case.has_run):
        yield "skipped cases:"
        for reason, count in sorted(skips.items(), key=lambda item: (-item[1], item[0])):
            yield f"    {count} x {reason}"
    yield f"test actions: {_counts(Counter(map(_origin, report.runs)))}"
    yield f"cases: {_counts(Counter(map(_word, cases)))}"
    yield (
        f"targets: {sum(status in GOOD for status in invocation.summaries.values())} passed, "
        f"{len(summary.bad_targets)} did not pass, {len(invocation.incompatible)} skipped by Bazel, "
        f"{len(summary.idle)} ran nothing"
    )


def _failure_lines(summary: Summary, label: str) -> Iterator[str]:
    """Yield the failed cases of a target, those of repeated attempts, too, and why it was not built."""
    lines: list[str] = []
    for run in summary.report.runs:
        if run.target == label:
            failed = [f"{case.name}: {_first_line(case.message)}" for case in run.cases if case.status in BAD]
            if not failed and run.status not in GOOD:
                why = "no case says why" if run.has_results else "its results cannot be read"
                failed = [f"attempt {run.attempt}: {run.status}; {why}"]
            lines += failed
    if why := summary.invocation.broken.get(label, ""):
        lines.append(_first_line(why))
    # Attempts often fail in the same way.
    lines = list(dict.fromkeys(lines))
    yield from (f"    {line}" for line in lines[:_FAILURES_SHOWN])
    if len(lines) > _FAILURES_SHOWN:
        yield f"    and {len(lines) - _FAILURES_SHOWN} more"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _origin(run: RunRecord) -> str:
    if run.cached:
        return "remote cache" if run.cached == "remote" else "unchanged here"
    return f"ran ({run.strategy})" if run.strategy else "ran"


def _word(case: CaseRecord) -> str:
    return _WORDS.get(tag_of(case), "passed") if case.has_run else "skipped"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
