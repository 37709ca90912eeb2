"""Measures how often cases fail without a change: a rate with its interval, by kind of failure and by culprit.

Only runs with equal inputs vote together: the runs and attempts of one invocation, and those of several invocations of
the same revision. A case that fails in every run of a revision is broken there, not flaky.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dist_testing.core.ground.record import BAD, CaseRecord
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.rates import jeffreys, runs_to_claim, wilson

# Stands for the name of a case where a target failed and no case says why.
WHOLE = "(the target as a whole)"

# A case on one backend with one world size: target, case, backend, world size.
_Key = tuple[str, str, str, int]
Label = Literal["flaky", "broken", "no failure"]


@dataclass(frozen=True, slots=True)
class Vote:
    """One run of one case.

    Attributes:
        target: Label of its target; "" outside Bazel.
        case: Its name.
        backend: Name of the backend.
        world_size: Number of ranks.
        inputs: Votes with the same text have equal inputs.
        order: Position of its invocation in time.
        kind: "" if it passed, else the kind of the failure.
        culprit: The rank that failed first.
        is_machine: Whether the machine is to blame; such a run says nothing about the case.
    """

    target: str
    case: str
    backend: str
    world_size: int
    inputs: str
    order: int
    kind: str
    culprit: int | None
    is_machine: bool

    @property
    def key(self) -> _Key:
        """What its rate is about."""
        return self.target, self.case, self.backend, self.world_size


@dataclass(slots=True)
class Flake:
    """What is known of the rate of one case, on one backend with one world size.

    Attributes:
        target: Label of its target; "" outside Bazel.
        case: Its name.
        backend: Name of the backend.
        world_size: Number of ranks.
        runs: Number of runs that vote.
        failures: Number of failures among them.
        broken: Number of runs whose inputs never passed; they do not vote.
        machine: Number of runs for which the machine is to blame; they do not vote.
        kinds: Kind of failure -> number.
        culprits: Culprit -> number of failures.
    """

    target: str
    case: str
    backend: str
    world_size: int
    runs: int = 0
    failures: int = 0
    broken: int = 0
    machine: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    culprits: Counter[int] = field(default_factory=Counter)

    @property
    def key(self) -> _Key:
        """What the rate is about, as in its votes."""
        return self.target, self.case, self.backend, self.world_size

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
    def at_least(self) -> float:
        """The rate that is exceeded with 95 %, by Jeffreys' posterior: what the list is ordered by."""
        return jeffreys(self.failures, self.runs, 0.05)

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

    def more_runs(self, rate: float = 0.01) -> int:
        """Return how many more clean runs allow the claim that the rate is below `rate`."""
        return runs_to_claim(self.failures, self.runs, rate)


def votes(report: Report, *, same_inputs: bool = False) -> Iterator[Vote]:
    """Yield the votes of all runs that really ran.

    Args:
        report: The results of one or many invocations.
        same_inputs: Whether the user vouches that all invocations had equal inputs.
    """
    times = [one.began_wall_s or 0.0 for one in report.invocations]
    order = {index: place for place, index in enumerate(sorted(range(len(times)), key=lambda index: times[index]))}
    whole = {(run.invocation, run.target) for run in report.runs if _failed_as_a_whole(run)}
    for run in report.runs:
        if run.cached:
            # The result is that of an earlier run.
            continue
        inputs = _inputs(report, run, same_inputs)
        place = order.get(run.invocation, 0)
        for case in run.cases:
            if case.status != "skipped":
                yield _vote(run, case, inputs, place)
        if (run.invocation, run.target) in whole:
            kind = run.status.lower() if _failed_as_a_whole(run) else ""
            yield Vote(run.suite, WHOLE, run.backend, 0, inputs, place, kind, None, is_machine=False)


def _failed_as_a_whole(run: RunRecord) -> bool:
    """Return whether a run did not pass although none of its cases says why, such as by a timeout of the target."""
    ended = run.is_bad_for_bazel and run.status not in ("NO_STATUS", "INCOMPLETE", "REMOTE_FAILURE")
    return ended and not any(case.status in BAD for case in run.cases)


def _inputs(report: Report, run: RunRecord, same_inputs: bool) -> str:
    versions = ",".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    platform = f"{run.configuration if not same_inputs else ''}|{versions}"
    if same_inputs:
        return platform
    known = run.invocation < len(report.invocations)
    revision = report.invocations[run.invocation].revision if known else ""
    return f"{revision or f'invocation {run.invocation}'}|{platform}"


def _vote(run: RunRecord, case: CaseRecord, inputs: str, order: int) -> Vote:
    is_bad = case.status in ("failed", "error", "unfinished", "xpassed")
    kind = (case.cause if case.cause not in ("", "none") else case.status) if is_bad else ""
    return Vote(
        run.suite,
        case.name,
        run.backend,
        case.world_size,
        inputs,
        order,
        kind,
        case.culprit if is_bad else None,
        case.status == "error",
    )


def measured(given: Iterable[Vote]) -> list[Flake]:
    """Count votes. The flakiest cases come first, then the broken ones, then the others with the fewest runs."""
    groups: dict[_Key, dict[str, list[Vote]]] = defaultdict(lambda: defaultdict(list))
    for vote in given:
        groups[vote.key][vote.inputs].append(vote)
    found = []
    for (target, case, backend, world_size), by_inputs in groups.items():
        flake = Flake(target, case, backend, world_size)
        for group in by_inputs.values():
            _count(flake, group)
        found.append(flake)
    rank = {"flaky": 0, "broken": 1, "no failure": 2}
    return sorted(
        found, key=lambda one: (rank[one.label], -one.at_least if one.failures else 0.0, one.target, one.case)
    )


def _count(flake: Flake, group: Sequence[Vote]) -> None:
    """Add the votes with equal inputs."""
    own = [vote for vote in group if not vote.is_machine]
    flake.machine += len(group) - len(own)
    failed = [vote for vote in own if vote.kind]
    if failed and len(failed) == len(own):
        flake.broken += len(own)
        return
    flake.runs += len(own)
    flake.failures += len(failed)
    flake.kinds.update(vote.kind for vote in failed)
    flake.culprits.update(vote.culprit for vote in failed if vote.culprit is not None)


@dataclass(frozen=True, slots=True)
class Change:
    """A case whose rate has changed in a history.

    Attributes:
        what: "new", "gone" or "worse".
        before: Its rate in the older half of the invocations.
        after: Its rate in the newer half.
    """

    what: Literal["new", "gone", "worse"]
    before: Flake
    after: Flake


def changes(given: Iterable[Vote]) -> list[Change]:
    """Compare the newer half of the invocations with the older half.

    "gone" needs so many clean runs that the old rate would have shown, and "worse" needs intervals that do not overlap.
    """
    every = list(given)
    orders = sorted({vote.order for vote in every})
    if len(orders) < 2:
        return []
    middle = orders[len(orders) // 2]
    before = {one.key: one for one in measured(vote for vote in every if vote.order < middle)}
    found = []
    for after in measured(vote for vote in every if vote.order >= middle):
        old = before.get(after.key)
        if old is None or not (old.runs and after.runs):
            continue
        if after.failures and not old.failures and after.interval[0] > old.interval[0]:
            found.append(Change("new", old, after))
        elif old.failures and not after.failures:
            if (1 - old.failures / old.runs) ** after.runs < 0.05:
                found.append(Change("gone", old, after))
        elif old.failures and after.interval[0] > old.interval[1]:
            found.append(Change("worse", old, after))
    return found
