"""A lane in a page: what passed, failed and was skipped, where results came from, and how even the shards are."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from build_events import Attempt, Invocation

from dist_testing.runner.junit import XmlCase, read_xml

__all__ = ["Balance", "Summary", "summarise", "summary_lines"]

# Of Bazel's words for a target, the good ones. A flaky one passes and is listed.
_GOOD = ("PASSED", "FLAKY")
# Lines that one failing target gets.
_FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the shards of a target are.

    Attributes:
        target: Its label.
        durations_s: Of each shard, in order.
    """

    target: str
    durations_s: Sequence[float]

    @property
    def ratio(self) -> float:
        """The longest shard over the mean; 1 is even."""
        mean = statistics.fmean(self.durations_s)
        return max(self.durations_s) / mean if mean else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What there is to say of an invocation.

    Attributes:
        statuses: Targets by Bazel's word for their end.
        bad_targets: Those that did not pass, to that word; also those that were not built.
        flaky: Those that passed after a failure.
        failures: Of each target, its failed cases and what they say.
        skips: Reasons, to how many cases gave them.
        idle: Targets of which no case was carried out.
        incompatible: Targets that Bazel itself has skipped.
        unread: Targets whose results are not on this machine.
        cases: Outcomes of cases, to how many there are.
        origins: Where the results of test actions come from, to how many.
        balances: Targets with shards, the most uneven first.
        exit_code: Bazel's, by its events.
        exit_name: Its name.
        is_complete: Whether the events are all there.
    """

    statuses: Mapping[str, int]
    bad_targets: Mapping[str, str]
    flaky: Sequence[str]
    failures: Mapping[str, Sequence[str]]
    skips: Mapping[str, int]
    idle: Sequence[str]
    incompatible: Sequence[str]
    unread: Sequence[str]
    cases: Mapping[str, int]
    origins: Mapping[str, int]
    balances: Sequence[Balance]
    exit_code: int | None
    exit_name: str
    is_complete: bool


def summarise(invocation: Invocation) -> Summary:
    """Sum up an invocation and its test.xml files.

    Raises:
        ReportError: If one of those cannot be read.
    """
    failures: dict[str, list[str]] = defaultdict(list)
    skips: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    # Of each target that has results here, whether a case was carried out.
    busy: dict[str, bool] = {}
    for attempt in invocation.attempts:
        for case in _cases(attempt):
            busy[attempt.target] = busy.get(attempt.target, False) or case.has_run
            cases["passed" if case.has_run and case.outcome == "skipped" else case.outcome] += 1
            if not case.has_run:
                skips[case.message or "no reason given"] += 1
            elif case.outcome in ("failed", "error"):
                failures[attempt.target].append(f"{case.key}: {case.message.partition(chr(10))[0]}")
        if attempt.xml is not None:
            busy.setdefault(attempt.target, False)
    statuses = dict(invocation.summaries)
    # A target that was not built has no summary, or one that says so.
    bad = dict.fromkeys(invocation.broken, "NOT BUILT") | {
        label: status for label, status in statuses.items() if status not in _GOOD
    }
    for label, why in invocation.broken.items():
        if why:
            failures[label].append(why.partition("\n")[0])
    return Summary(
        statuses=Counter(statuses.values()),
        bad_targets=bad,
        flaky=sorted(label for label, status in statuses.items() if status == "FLAKY"),
        failures=failures,
        skips=skips,
        idle=sorted(label for label, is_busy in busy.items() if not is_busy and label not in bad),
        incompatible=invocation.incompatible,
        unread=sorted({attempt.target for attempt in invocation.attempts if attempt.xml is None}),
        cases=cases,
        origins=Counter(_origin(attempt) for attempt in invocation.attempts),
        balances=_balances(invocation.attempts),
        exit_code=invocation.exit_code,
        exit_name=invocation.exit_name,
        is_complete=invocation.is_complete,
    )


def _cases(attempt: Attempt) -> Iterator[XmlCase]:
    if attempt.xml is not None:
        for suite in read_xml(attempt.xml):
            yield from suite.cases


def _origin(attempt: Attempt) -> str:
    if attempt.cached:
        return "remote cache" if attempt.cached == "remote" else "unchanged here"
    return f"ran ({attempt.strategy})" if attempt.strategy else "ran"


def _balances(attempts: Sequence[Attempt]) -> list[Balance]:
    """Of every target with shards the first run, with the last attempt of each shard."""
    durations: dict[str, dict[int, float]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.run == 1:
            durations[attempt.target][attempt.shard] = attempt.duration_s
    balances = [
        Balance(target, [seconds for _, seconds in sorted(shards.items())])
        for target, shards in durations.items()
        if len(shards) > 1
    ]
    return sorted(balances, key=lambda balance: (-balance.ratio, balance.target))


def summary_lines(summary: Summary, *, shard_rows: int) -> Iterator[str]:
    """The page, without a verdict.

    Args:
        summary: What to show.
        shard_rows: How many sharded targets are listed.
    """
    yield ""
    for label, status in sorted(summary.bad_targets.items()):
        yield f"{status}  {label}"
        failures = summary.failures.get(label, ())
        for failure in failures[:_FAILURES_SHOWN]:
            yield f"    {failure}"
        if len(failures) > _FAILURES_SHOWN:
            yield f"    and {len(failures) - _FAILURES_SHOWN} more"
    for label in summary.flaky:
        yield f"FLAKY  {label}: passed after a failure"
    for label in summary.idle:
        yield f"RAN NOTHING  {label}"
    for label in summary.unread:
        yield f"NO RESULTS HERE  {label}: its test.xml was not fetched"
    for label in summary.incompatible:
        yield f"SKIPPED BY BAZEL  {label}: not for this platform or its GPUs"
    if summary.skips:
        yield "skipped cases:"
        for reason, count in sorted(summary.skips.items(), key=lambda item: (-item[1], item[0])):
            yield f"    {count} x {reason}"
    if summary.balances and shard_rows:
        yield "shards, s (longest / mean):"
        for balance in summary.balances[:shard_rows]:
            durations = " ".join(f"{seconds:.1f}" for seconds in balance.durations_s)
            yield f"    {balance.ratio:.2f}  {balance.target}: {durations}"
        if len(summary.balances) > shard_rows:
            yield f"    and {len(summary.balances) - shard_rows} targets that are more even"
    yield f"test actions: {_counts(summary.origins)}"
    yield f"cases: {_counts(summary.cases)}"
    passed = sum(summary.statuses.get(status, 0) for status in _GOOD)
    yield (
        f"targets: {passed} passed, {len(summary.bad_targets)} did not pass, "
        f"{len(summary.incompatible)} skipped by Bazel, {len(summary.idle)} ran nothing"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
