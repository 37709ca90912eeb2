"""Compares two invocations: what was added and removed, what no longer runs, and what is slower beyond the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dist_testing.core.ground.record import BAD, STATUSES, Status
from dist_testing.report.facts import RecordedNumber, final_runs, numbers_of
from dist_testing.report.model import Problem, Report
from dist_testing.report.words import grouped, one_line, seconds

# A case is slower if its ratio is so many robust standard deviations above the ratio of the middle case, ...
_SIGMAS = 4.0
# ... it is slower by at least this factor, ...
_LEAST_FACTOR = 1.3
# ... and by at least this time. Seconds.
_LEAST_S = 0.2
# Cases that are too few tell nothing about noise; then the factor has to be this large.
_FEW = 8
_FACTOR_OF_FEW = 2.0
_MAX_NAMES = 60
# A number has moved if its median has changed by this part of the median before.
_MOVED = 0.05
_MAX_SHIFT = 1.15

_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Slower:
    """A case that is slower beyond the noise: its median before and after, in seconds."""

    target: str
    case: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two reports."""

    # Kind of difference, the most important first -> the target and the case, which is "" for a whole target.
    groups: dict[str, tuple[_Name, ...]]
    slower: tuple[Slower, ...]  # cases that are slower beyond the noise, the most first
    shift: float  # ratio of the durations of the middle case: 1.2 if everything is 20 % slower
    # Numbers of cases that have moved, before and after, the most first.
    numbers: tuple[tuple[RecordedNumber, RecordedNumber], ...] = ()
    unread: tuple[Problem, ...] = ()  # what could not be read of the report before, and so may look like a difference

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.slower or self.groups or self.numbers)

    @property
    def shift_words(self) -> str:
        """How much slower everything is, in a sentence; "" if it is not much."""
        if 1 / _MAX_SHIFT < self.shift < _MAX_SHIFT:
            return ""
        return (
            f"The middle case takes {self.shift:.2f} times as long as before: another machine or load. "
            "Slower is beyond that."
        )


def compare(before: Report, after: Report) -> Comparison:
    """Compare two reports, each of one invocation or of several."""
    files = [{run.target for run in report.runs if not run.suite} for report in (before, after)]
    if all(files) and not files[0] & files[1]:
        # Two runs of pytest whose files have names of their own.
        before, after = _without_files(before), _without_files(after)
    old, new = _statuses(before), _statuses(after)
    old_targets, new_targets = before.every_target, after.every_target
    both = old.keys() & new.keys()
    # The cases of a target that was not built, or whose results cannot be read, are unknown and not removed.
    unknown = {run.target for run in after.runs if not run.has_results} | {line.target for line in after.not_run}
    gone = {target for target in old_targets - new_targets if target not in unknown}
    removed = [name for name in old.keys() - new.keys() if name[0] in new_targets and name[0] not in unknown]
    added = [name for name in new.keys() - old.keys() if name[0] in old_targets]
    groups = {
        "Newly failing": [name for name in new if new[name] in BAD and old.get(name) not in BAD],
        "Newly skipped": [name for name in both if new[name] == "skipped" and old[name] != "skipped"],
        "Removed": [*removed, *((target, "") for target in gone)],
        "Mended": [name for name in both if old[name] in BAD and new[name] == "passed"],
        "Added": [*added, *((target, "") for target in new_targets - old_targets)],
        "Newly from a cache": [(target, "") for target in _cached(after) & (old_targets - _cached(before))],
    }
    return Comparison(
        {title: tuple(sorted(names)) for title, names in groups.items() if names},
        *_slower(before, after),
        tuple(_moved(before, after)),
        tuple(replace(problem, subject=f"before: {problem.subject}") for problem in before.problems),
    )


def _without_files(report: Report) -> Report:
    return replace(report, runs=tuple(replace(run, target=run.suite) for run in report.runs))


def _statuses(report: Report) -> dict[_Name, Status]:
    """Return the worst status of each case."""
    found: dict[_Name, Status] = {}
    for run in final_runs(report):
        for case in run.cases:
            name = (run.target, case.name)
            found[name] = min(found.get(name, case.status), case.status, key=STATUSES.index)
    return found


def _cached(report: Report) -> set[str]:
    return {run.target for run in report.runs} - {run.target for run in report.runs if not run.cached}


def _slower(before: Report, after: Report) -> tuple[tuple[Slower, ...], float]:
    """Return the slower cases, and the ratio of the middle case.

    Two runs of one case differ by noise, and two machines by a factor. Both are taken from all cases together.
    """
    old, new = _durations(before), _durations(after)
    both = sorted(name for name in old.keys() & new.keys() if old[name] >= 0.001 and new[name] >= 0.001)
    ratios = {name: math.log(new[name] / old[name]) for name in both}
    if not ratios:
        return (), 1.0
    middle = statistics.median(ratios.values())
    # 1.4826: the factor from the median of deviations to the standard deviation of a normal distribution.
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios.values())
    least = math.log(_FACTOR_OF_FEW) if len(ratios) < _FEW else max(math.log(_LEAST_FACTOR), _SIGMAS * spread)
    shift = middle if len(ratios) >= _FEW else 0.0
    found = [
        Slower(*name, old[name], new[name])
        for name, ratio in ratios.items()
        if ratio - shift > least and new[name] - old[name] * math.exp(shift) > _LEAST_S
    ]
    found.sort(key=lambda one: one.before_s - one.after_s)
    return tuple(found), math.exp(shift)


def _moved(before: Report, after: Report) -> list[tuple[RecordedNumber, RecordedNumber]]:
    old = {number.key: number for number in numbers_of(before)}
    pairs = [(old[number.key], number) for number in numbers_of(after) if number.key in old]
    moved = [(one, other) for one, other in pairs if _move(one, other) >= _MOVED]
    return sorted(moved, key=lambda pair: -_move(*pair))


def _move(before: RecordedNumber, after: RecordedNumber) -> float:
    """Return by which part of itself a number has changed."""
    change = abs(after.summary.median - before.summary.median)
    return change / abs(before.summary.median) if before.summary.median else change and math.inf


def _durations(report: Report) -> dict[_Name, float]:
    """Return the median duration of each case that really ran and passed."""
    found = grouped(
        ((run.target, case.name), case.duration_s)
        for run in report.runs
        if not run.cached
        for case in run.cases
        if case.status == "passed"
    )
    return {name: statistics.median(values) for name, values in found.items()}


def compare_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the differences as lines for a terminal."""
    for title, names in comparison.groups.items():
        yield f"{title}: {len(names)}"
        yield from (f"    {one_line(*one)}" for one in names[:_MAX_NAMES])
        if len(names) > _MAX_NAMES:
            yield f"    and {len(names) - _MAX_NAMES} more"
    for one in comparison.slower[:_MAX_NAMES]:
        yield f"slower: {one_line(one.target, one.case)}: {seconds(one.before_s)} -> {seconds(one.after_s)}"
    for before, after in comparison.numbers[:_MAX_NAMES]:
        name = one_line(after.target, after.case, after.name)
        yield f"number: {name}: {before.median_text} -> {after.median_text}"
    if comparison.shift_words:
        yield comparison.shift_words
    if comparison.is_empty:
        yield "no difference"
