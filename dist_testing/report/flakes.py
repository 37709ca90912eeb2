"""Measures how often cases fail without a change: a rate with its interval, by kind of failure and by culprit.

Only runs with equal inputs vote together: the runs and attempts of one invocation, and those of several invocations of
the same revision. A case that fails in every run of a revision is broken there, not flaky.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from dist_testing.core.ground.record import BAD
from dist_testing.report.facts import ended
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.words import grouped, one_line, percent, plural

# Stands for the name of a case where a target failed and no case says why.
WHOLE = "(the target as a whole)"

# Quantile of the normal distribution for an interval of 95 %.
_Z95 = 1.959963984540054
# No target runs more often; the search for a number of runs ends here.
_MAX_RUNS = 1 << 24

Label = Literal["flaky", "broken", "no failure"]


def wilson(failures: int, runs: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for the rate of failure. Without runs it is 0 to 1."""
    if runs == 0:
        return 0.0, 1.0
    rate = failures / runs
    scale = 1 + _Z95 * _Z95 / runs
    middle = (rate + _Z95 * _Z95 / (2 * runs)) / scale
    half = _Z95 * math.sqrt(rate * (1 - rate) / runs + _Z95 * _Z95 / (4 * runs * runs)) / scale
    low = 0.0 if failures == 0 else max(0.0, middle - half)
    return low, 1.0 if failures == runs else min(1.0, middle + half)


@dataclass(frozen=True)
class _Subject:
    target: str  # label of its target; "" outside Bazel
    case: str
    backend: str
    world_size: int


@dataclass(frozen=True)
class Vote(_Subject):
    """One run of one case."""

    inputs: str  # votes with the same text have equal inputs
    kind: str  # "" if it passed, else the kind of the failure
    culprit: int | None  # the rank that failed first
    is_machine: bool  # whether the machine is to blame; such a run says nothing about the case


@dataclass(frozen=True)
class Flake(_Subject):
    """What is known of the rate of one case, on one backend with one world size."""

    runs: int = 0  # number of runs that vote
    failures: int = 0  # number of failures among them
    broken: int = 0  # number of runs whose inputs never passed; they do not vote
    machine: int = 0  # number of runs for which the machine is to blame; they do not vote
    kinds: Counter[str] = field(default_factory=Counter)  # kind of failure -> number
    culprits: Counter[int] = field(default_factory=Counter)  # culprit -> number of failures

    @property
    def label(self) -> Label:
        """Whether it is flaky: it has both passed and failed with equal inputs."""
        if self.failures:
            return "flaky"
        return "broken" if self.broken else "no failure"

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval for the rate, 95 %."""
        return wilson(self.failures, self.runs)

    @property
    def culprit_words(self) -> str:
        """Whether the failures always name the same rank, or wander."""
        if not self.culprits:
            return ""
        if len(self.culprits) == 1:
            (rank,) = self.culprits
            return f"always rank {rank}" if self.culprits[rank] > 1 else f"rank {rank}"
        found = ", ".join(f"{rank} ({count})" for rank, count in sorted(self.culprits.items()))
        return f"wanders: ranks {found}"

    @property
    def words(self) -> str:
        """The kinds of its failures, and which ranks began them, in one line."""
        kinds = ", ".join(f"{count} x {kind[:60]}" for kind, count in self.kinds.most_common(5))
        machine = f"{plural(self.machine, 'run')} lost by the machine" if self.machine else ""
        return "; ".join(filter(None, (kinds, self.culprit_words, machine)))

    def more_runs(self, rate: float) -> int:
        """Return how many more clean runs allow the claim that the rate is below `rate`: it is above the interval."""
        numbers = range(_MAX_RUNS)
        return bisect.bisect_left(numbers, True, key=lambda more: wilson(self.failures, self.runs + more)[1] < rate)


def votes(report: Report, *, same_inputs: bool = False) -> Iterator[Vote]:
    """Yield the votes of all runs that really ran. `same_inputs`: the user vouches that all had equal inputs."""
    whole = {(run.invocation, run.target) for run in report.runs if _failed_as_a_whole(run)}
    for run in report.runs:
        if run.cached:
            # The result is that of an earlier run.
            continue
        inputs = _inputs(report, run, same_inputs)
        for case in run.cases:
            status = ended(case)
            is_bad = status in (*BAD, "xpassed")
            kind = (case.cause if case.cause not in ("", "none") else status) if is_bad else ""
            culprit = case.culprit if is_bad else None
            subject = (run.suite, case.name, run.backend, case.world_size)
            if status != "skipped":
                yield Vote(*subject, inputs, kind, culprit, case.status == "error")
        if (run.invocation, run.target) in whole:
            kind = run.status.lower() if _failed_as_a_whole(run) else ""
            yield Vote(run.suite, WHOLE, run.backend, 0, inputs, kind, None, is_machine=False)


def _failed_as_a_whole(run: RunRecord) -> bool:
    """Return whether a run did not pass although none of its cases says why, such as by a timeout of the target."""
    ended = run.is_bad_for_bazel and run.status not in ("NO_STATUS", "INCOMPLETE", "REMOTE_FAILURE")
    return ended and not any(case.status in BAD for case in run.cases)


def _inputs(report: Report, run: RunRecord, same_inputs: bool) -> str:
    versions = ",".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    if same_inputs:
        return versions
    revision = report.invocations[run.invocation].revision or f"invocation {run.invocation}"
    return f"{revision}|{run.configuration}|{versions}"


def measured(given: Iterable[Vote]) -> list[Flake]:
    """Count votes. The flakiest cases come first, then the broken ones, then the others with the fewest runs."""
    groups = grouped(((vote.target, vote.case, vote.backend, vote.world_size), vote) for vote in given)
    found = []
    for subject, of_case in groups.items():
        own = [vote for vote in of_case if not vote.is_machine]
        # Where no run has passed, the case is broken.
        passed = {vote.inputs for vote in own if not vote.kind}
        voting = [vote for vote in own if vote.inputs in passed]
        failed = [vote for vote in voting if vote.kind]
        flake = Flake(
            *subject,
            runs=len(voting),
            failures=len(failed),
            broken=len(own) - len(voting),
            machine=len(of_case) - len(own),
            kinds=Counter(vote.kind for vote in failed),
            culprits=Counter(vote.culprit for vote in failed if vote.culprit is not None),
        )
        found.append(flake)
    labels = get_args(Label)
    return sorted(found, key=lambda one: (labels.index(one.label), -one.interval[0], one.target, one.case))


def flake_lines(rates: Sequence[Flake], rate: float) -> Iterator[str]:
    """Yield the rates as lines for a terminal, the flakiest first. `rate` is the rate to claim."""
    for flake in rates:
        low, high = flake.interval
        name = one_line(flake.target, flake.case)
        if flake.label == "broken":
            yield f"BROKEN  {name}: failed in all of {flake.broken} runs"
            continue
        if flake.label == "flaky":
            yield f"FLAKY  {name}: {flake.failures} of {flake.runs} failed, {percent(low)} to {percent(high)} (95 %)"
            yield f"    {one_line(flake.words)}"
        more = flake.more_runs(rate)
        if more == 0:
            yield f"below {percent(rate)}  {name}: {flake.failures} of {flake.runs} failed (95 % confidence)"
        elif flake.label == "no failure":
            yield f"unknown  {name}: 0 of {flake.runs} failed; {more} more clean runs to claim below {percent(rate)}"
