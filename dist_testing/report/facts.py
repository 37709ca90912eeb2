"""Derives what people ask from a report: what failed, what did not run, what is slow, how balanced the shards are."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dist_testing.core.bazel.sharding import assign_units
from dist_testing.core.ground.record import BAD, CaseRecord, Status
from dist_testing.report.model import Action, NotRun, Report, RunRecord, is_label

# pytest's message of a test without ranks is only the place; the first such line of its text says more.
_PLACE = re.compile(r"\S+:\d+: \w+")
_ERROR = re.compile(r"^E +(\S.*)$", re.MULTILINE)
_MARK = re.compile(r"^E +")
_NUMBERS = re.compile(r"\d+\.\d+ s|0x[0-9a-f]+|pid \d+")
_WORLD = re.compile(r"^ \(world of \d+\)(?=: )")


def utc(wall_s: float) -> str:
    """Return a time of day in UTC: "2026-11-22 14:03:05 UTC"; the number itself if it is no date."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{wall_s:g} s after 1970"


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not pass, or a run that did not pass although no case says why.

    Attributes:
        run: The run.
        case: The case; None if it is about the run as a whole.
        recovered: Whether a later attempt has passed.
    """

    run: RunRecord
    case: CaseRecord | None
    recovered: bool

    @property
    def name(self) -> str:
        """Name of the case; that of the target if it is about the run as a whole."""
        return self.case.name if self.case is not None else self.run.target


def _last_attempts(runs: Iterable[RunRecord]) -> dict[Action, int]:
    last: dict[Action, int] = {}
    for run in runs:
        last[run.action] = max(last.get(run.action, 0), run.attempt)
    return last


def final_runs(report: Report) -> list[RunRecord]:
    """Return the last attempt of each shard and run: what counts."""
    last = _last_attempts(report.runs)
    return [run for run in report.runs if run.attempt == last[run.action]]


def last_passes(report: Report) -> dict[Action, int]:
    """Return, for each action that has passed, the number of its last attempt that did."""
    return _last_attempts(run for run in report.runs if not run.is_bad)


def failures(report: Report) -> list[Failure]:
    """Return all failures. Those that a later attempt has made good come last."""
    found = []
    passes = last_passes(report)
    for run in report.runs:
        if not run.is_bad:
            continue
        bad = [case for case in run.cases if case.status in BAD]
        recovered = passes.get(run.action, 0) > run.attempt
        found += [Failure(run, case, recovered) for case in bad]
        # FAILED after passed cases: a crash at the end, a timeout, a failed promise of the whole target.
        if not bad and run.status not in ("NO_STATUS", "INCOMPLETE"):
            found.append(Failure(run, None, recovered))
    return sorted(found, key=lambda failure: failure.recovered)


def alike(found: Sequence[Failure]) -> list[list[Failure]]:
    """Return failures of the same case with the same message together, such as those of repeated runs."""
    groups: dict[tuple[str, str, str, bool], list[Failure]] = {}
    for failure in found:
        name = failure.case.name if failure.case is not None else ""
        # Times differ in each run.
        words = _NUMBERS.sub("", headline(failure.run, failure.case))
        groups.setdefault((failure.run.suite, name, words, failure.recovered), []).append(failure)
    return list(groups.values())


def headline(run: RunRecord, case: CaseRecord | None) -> str:
    """Return what happened in one sentence, without the name of the case."""
    if case is None:
        why = f"none of its {len(run.cases)} case(s) says why" if run.has_results else "its cases are unknown"
        return f"Bazel says {run.status}, and {why}."
    told = _without_name(case.message, case.nodeid) if case.nodeid else case.message
    # pytest marks the lines of the error itself.
    told = _MARK.sub("", told)
    if _PLACE.fullmatch(told) and (error := _ERROR.search(case.text)):
        told = f"{error[1]} ({told})"
    if told.strip():
        return told.strip()
    return "It failed without a message." if case.status in BAD else ""


def _without_name(message: str, nodeid: str) -> str:
    # Under Bazel the runner names the target before the case.
    target, comma, rest = message.partition(f", case {nodeid}")
    if not (comma and is_label(target)):
        if not message.startswith(nodeid):
            return message
        rest = message.removeprefix(nodeid)
    return _WORLD.sub("", rest, count=1).removeprefix(": ")


def status_counts(report: Report) -> Counter[Status]:
    """Return status -> number of cases; of a repeated case the last attempt counts."""
    return Counter(case.status for run in final_runs(report) for case in run.cases)


def ledger(report: Report) -> list[NotRun]:
    """Return the skip ledger: each case and target that did not run, and why."""
    lines = list(report.not_run)
    broken = {line.target for line in lines}
    idle: dict[tuple[int, str], list[RunRecord]] = defaultdict(list)
    for run in final_runs(report):
        idle[run.invocation, run.target].append(run)
        for case in run.cases:
            if case.status == "skipped":
                reason = case.message.strip() or "skipped without a reason"
                lines.append(NotRun("skipped", run.target, case.name, reason))
        if run.to_come:
            why = "the run ended before they began" if not run.is_complete else "pytest stopped before they began"
            lines.append(NotRun("not reached", run.target, "", f"{why}{run.in_part}", run.to_come))
        if not run.has_results and run.target not in broken:
            lines.append(NotRun("no results", run.target, "", f"its results cannot be read{run.in_part}", 0))
        if run.cached:
            lines.append(NotRun("cached", run.target, "", _cached(run), len(run.cases)))
    for (invocation, target), runs in idle.items():
        cases = [case for run in runs for case in run.cases]
        if (
            target not in broken
            and all(run.has_results for run in runs)
            and not any(c.status != "skipped" for c in cases)
        ):
            chosen = report.invocations[invocation].test_filter if invocation < len(report.invocations) else ""
            why = f"all {len(cases)} cases were skipped" if cases else "it has no case"
            if not cases and chosen:
                why = f"no case of it matches --test_filter={chosen}"
            lines.append(NotRun("ran nothing", target, "", why, 0))
    lines += [
        NotRun("filtered", one.name, "", f"only cases that match --test_filter={one.test_filter} were to run", 0)
        for one in report.invocations
        if one.test_filter
    ]
    return lines


def _cached(run: RunRecord) -> str:
    place = "a remote cache" if run.cached == "remote" else "this machine"
    since = f", from a run of {utc(run.began_wall_s)}" if run.began_wall_s is not None else ""
    return f"nothing has changed: the result is from {place}{since}{run.in_part}"


@dataclass(frozen=True, slots=True)
class Share:
    """How the time of a case was spent, by the slowest rank of each part. Seconds.

    Attributes:
        gpu_wait_s: Waiting for GPUs.
        start_s: Until the processes of the ranks were ready: forks or starts.
        init_s: Making the process group.
        body_s: Setup, test and teardown.
        rest_s: Everything else.
    """

    gpu_wait_s: float
    start_s: float
    init_s: float
    body_s: float
    rest_s: float


def shares(case: CaseRecord) -> Share:
    """Return how the time of a case was spent."""
    longest: dict[str, float] = defaultdict(float)
    for rank in case.ranks:
        spent: dict[str, float] = defaultdict(float)
        for phase in rank.phases:
            part = phase.name if phase.name in ("start", "init") else "body"
            spent[part] += max(0.0, phase.end_s - phase.begin_s)
        for part, seconds in spent.items():
            longest[part] = max(longest[part], seconds)
    known = case.gpu_wait_s + sum(longest.values())
    return Share(case.gpu_wait_s, longest["start"], longest["init"], longest["body"], max(0.0, case.duration_s - known))


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow case, with its run."""

    run: RunRecord
    case: CaseRecord


def slow_cases(report: Report, count: int) -> list[Slow]:
    """Return the slowest cases that ran and took a known time, the slowest first; of several runs, the slowest."""
    slowest: dict[tuple[str, str], Slow] = {}
    for run in final_runs(report):
        for case in run.cases:
            key = (run.suite, case.name)
            if (
                case.status != "skipped"
                and case.duration_s
                and (key not in slowest or slowest[key].case.duration_s < case.duration_s)
            ):
                slowest[key] = Slow(run, case)
    return sorted(slowest.values(), key=lambda slow: -slow.case.duration_s)[:count]


@dataclass(frozen=True, slots=True)
class Balance:
    """How balanced the shards of a target are.

    Attributes:
        target: Its label.
        durations_s: Duration of each shard in seconds, in order.
        ideal_s: The longest shard, if timings had assigned the cases: longest case first, to the shard with the least.
    """

    target: str
    durations_s: Sequence[float]
    ideal_s: float

    @property
    def ratio(self) -> float:
        """The longest shard divided by the mean; 1 is balanced."""
        mean = statistics.fmean(self.durations_s)
        return max(self.durations_s) / mean if mean else 1.0


def balances(report: Report) -> list[Balance]:
    """Return the balance of the first run of each target with shards, the most uneven first."""
    shards: dict[tuple[int, str, str], list[RunRecord]] = defaultdict(list)
    for run in final_runs(report):
        if run.run == 1:
            shards[run.invocation, run.target, run.configuration].append(run)
    found = []
    for (_, target, _), runs in shards.items():
        if len(runs) > 1:
            runs.sort(key=lambda run: run.shard)
            found.append(Balance(target, [run.duration_s for run in runs], _ideal_s(runs)))
    return sorted(found, key=lambda balance: (-balance.ratio, balance.target))


def _ideal_s(runs: Sequence[RunRecord]) -> float:
    """Return the longest shard of an assignment by timings. What a shard needs beside its cases stays as it is."""
    overhead_s = min(max(0.0, run.duration_s - sum(case.duration_s for case in run.cases)) for run in runs)
    cases = [case.duration_s for run in runs for case in run.cases]
    durations = {str(number): seconds for number, seconds in enumerate(cases)}
    return overhead_s + assign_units([[key] for key in durations], durations, len(runs))[1]


def cache_counts(report: Report) -> Counter[str]:
    """Return the origin of the results of test actions -> number of actions."""
    words = {"remote": "remote cache", "local": "unchanged here"}
    return Counter(
        words.get(run.cached, f"ran ({run.strategy})" if run.strategy else "ran") for run in report.runs if run.status
    )


@dataclass(frozen=True, slots=True)
class GpuWait:
    """How long the cases of a target waited for GPUs: in all, and the longest wait, in seconds."""

    target: str
    cases: int
    total_s: float
    longest_s: float


def gpu_waits(report: Report) -> list[GpuWait]:
    """Return the waits of each target that used GPUs, the longest total first."""
    waits: dict[str, list[float]] = defaultdict(list)
    for run in final_runs(report):
        for case in run.cases:
            if case.gpus or case.gpu_wait_s:
                waits[run.target].append(case.gpu_wait_s)
    found = [GpuWait(target, len(seconds), sum(seconds), max(seconds)) for target, seconds in waits.items()]
    return sorted(found, key=lambda wait: (-wait.total_s, wait.target))


def named(report: Report) -> Iterator[tuple[RunRecord, CaseRecord]]:
    """Yield every case of the report with its run."""
    for run in report.runs:
        for case in run.cases:
            yield run, case
