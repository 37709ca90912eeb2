"""Derives what people ask from a report: what failed, what did not run, what is slow, which numbers were recorded.

It also takes the text of a failure apart.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.record import BAD, CaseRecord, Status
from dist_testing.numbers.number import PROPERTY, Summary
from dist_testing.report.model import Action, NotRun, Report, RunRecord
from dist_testing.report.result_xml import seconds_in
from dist_testing.report.words import grouped, utc

_NUMBERS = re.compile(r"\d+\.\d+ s|0x[0-9a-f]+|pid \d+")
# `core.engine.report` separates parts with such a line.
_RULE = re.compile(r"^-{80,}$", re.MULTILINE)
# Titles of parts, in the order in which they matter: the culprit, its output, others that failed, stacks.
_TITLES = (
    re.compile(r"ranks? [\d, ]+ of \d+ (failed first|is what the others wait for):"),
    re.compile(r"output of rank \d+"),
    re.compile(r"ranks? [\d, ]+ of \d+ also failed:"),
    re.compile(r"stacks of rank\(s\) [\d, ]+:"),
)
_COMMAND = "This case alone: "
_VICTIMS = "Victims: "
# The properties of a quarantined case, which XML of any program may have in part.
_QUARANTINE = dict.fromkeys(
    ("quarantine", *(f"quarantine_{name}" for name in ("reason", "link", "owner", "expires", "failure"))), ""
)
_LEDGER = re.compile(r"Ledger of ranks? [\d, ]+: ")


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not pass, or a run that did not pass although no case says why."""

    run: RunRecord
    case: CaseRecord | None  # the case; None if it is about the run as a whole
    recovered: bool  # whether a later attempt has passed

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
        if is_bad_as_a_whole(run):
            found.append(Failure(run, None, recovered))
    return sorted(found, key=lambda failure: failure.recovered)


def is_bad_as_a_whole(run: RunRecord) -> bool:
    """Return whether no case tells why a run failed: a crash at the end, a timeout, a failed promise of the target."""
    has_told = any(case.status in BAD for case in run.cases)
    return run.is_bad and not has_told and run.status not in ("NO_STATUS", "INCOMPLETE")


def told_cases(run: RunRecord) -> Sequence[CaseRecord]:
    """Return the cases of a run for programs that know only cases: one more tells that it has failed as a whole."""
    if is_bad_as_a_whole(run):
        why = headline(run, None)
    elif not (run.suite or run.is_complete or run.is_bad):
        why = "The run was killed, or its last events are missing."
    else:
        return run.cases
    return *run.cases, CaseRecord(run.target, "failed", when="collect", message=why)


def alike(found: Sequence[Failure]) -> list[list[Failure]]:
    """Return failures of the same case with the same message together, such as those of repeated runs."""

    def key(failure: Failure) -> tuple[str, str, str, bool]:
        # Times differ in each run.
        words = _NUMBERS.sub("", headline(failure.run, failure.case))
        return failure.run.suite, failure.name, words, failure.recovered

    return list(grouped((key(failure), failure) for failure in found).values())


def headline(run: RunRecord, case: CaseRecord | None) -> str:
    """Return what happened in one sentence, without the name of the case."""
    if case is None:
        what = f"Bazel says {run.status}" if run.is_bad_for_bazel else f"The run ended with exit status {run.exit_code}"
        why = f"none of its {len(run.cases)} case(s) says why" if run.has_results else "its cases are unknown"
        return f"{what}, and {why}."
    return case.message.strip() or ("It failed without a message." if case.status in BAD else "")


def gpus_of(case: CaseRecord) -> tuple[str, float]:
    """Return the machine's numbers of the GPUs of a case, and how long it waited for them, in seconds."""
    told = dict(case.properties)
    return str(told.get("gpus", "")), seconds_in(str(told.get("gpu_wait_s", "")))


def status_counts(report: Report) -> Counter[Status]:
    """Return status -> number of cases; of a repeated case the last attempt counts."""
    return Counter(case.status for run in final_runs(report) for case in run.cases)


def ledger(report: Report) -> list[NotRun]:
    """Return the skip ledger: each case and target that did not run, and why."""
    lines = list(report.not_run)
    broken = {line.target for line in lines}
    final = final_runs(report)
    for run in final:
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
    for (invocation, target), runs in grouped(((run.invocation, run.target), run) for run in final).items():
        cases = [case for run in runs for case in run.cases]
        if target in broken or any(not run.has_results for run in runs) or any(c.status != "skipped" for c in cases):
            continue
        chosen = report.invocations[invocation].test_filter
        why = f"no case of it matches --test_filter={chosen}" if chosen else "it has no case"
        lines.append(NotRun("ran nothing", target, "", f"all {len(cases)} cases were skipped" if cases else why, 0))
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


def ended(case: CaseRecord) -> Status:
    """Return how a case ended. A failure that a quarantine file has taken out of the verdict is one here."""
    return "failed" if is_quarantined_failure(case) else case.status


def is_quarantined_failure(case: CaseRecord) -> bool:
    """Return whether a case has failed, and a quarantine file says that this does not decide about the run."""
    return ("quarantine", "failed") in case.properties


def quarantined(report: Report) -> list[tuple[RunRecord, CaseRecord, dict[str, str]]]:
    """Return the cases that a quarantine file names, with their properties; those that have failed come first."""
    found = [
        (run, case, told)
        for run in final_runs(report)
        for case in run.cases
        if (told := {**_QUARANTINE, **{name: str(value) for name, value in case.properties}})["quarantine"]
    ]
    return sorted(found, key=lambda one: not is_quarantined_failure(one[1]))


def slow_cases(report: Report, count: int) -> list[CaseRecord]:
    """Return the slowest cases that ran and took a known time, the slowest first; of several runs, the slowest."""
    slowest: dict[tuple[str, str], CaseRecord] = {}
    for run in final_runs(report):
        for case in run.cases:
            known = slowest.get((run.suite, case.name))
            if case.status != "skipped" and case.duration_s > (known.duration_s if known else 0):
                slowest[run.suite, case.name] = case
    return sorted(slowest.values(), key=lambda case: -case.duration_s)[:count]


@dataclass(frozen=True, slots=True)
class RecordedNumber:
    """A number of a case, in all ranks that recorded it."""

    target: str
    case: str
    name: str
    summary: Summary

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it comparable with one of another report."""
        return self.target, self.case, self.name, self.summary.unit

    @property
    def median_text(self) -> str:
        """The median of the ranks, with its unit."""
        return f"{self.summary.median:g} {self.summary.unit}".rstrip()


def numbers_of(report: Report) -> Iterator[RecordedNumber]:
    """Yield all numbers; of a repeated case those of the last attempt."""
    for run in final_runs(report):
        for case in run.cases:
            for name, value in case.properties:
                if name.startswith(PROPERTY):
                    try:
                        summary: Summary = shape_of(Summary).read(json.loads(str(value)))
                    except (WrongValueError, ValueError, RecursionError):
                        # Any program may have written the file.
                        continue
                    yield RecordedNumber(run.target, case.name, name.removeprefix(PROPERTY), summary)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a failure's text."""

    place: int  # index of its title in `_TITLES`; 0 is the culprit
    title: str  # its first line
    text: str  # the rest


@dataclass(frozen=True, slots=True)
class Story:
    """The text of a failure."""

    head: str  # what happened, in sentences
    victims: str  # what became of the victims, in a sentence; "" if there are none
    ledger: tuple[str, ...]  # Lines about collective calls: which rank waits where
    command: str  # the command that runs this case alone; "" if the text gives none
    parts: tuple[Part, ...]  # the parts, the culprit's first

    @property
    def culprits(self) -> list[Part]:
        """The parts about the culprit."""
        return [part for part in self.parts if part.place == 0]

    @property
    def others(self) -> list[Part]:
        """The other parts that have a text."""
        return [part for part in self.parts if part.place and part.text]

    @property
    def is_plain(self) -> bool:
        """Whether the head is a traceback or another text that this library has not written."""
        return not (self.parts or self.command or self.victims or self.ledger)


def story_of(text: str) -> Story:
    """Take a text apart. A text that this library has not written becomes one head."""
    head, *rest = _RULE.split(text)
    command = victims = ""
    lines: list[str] = []
    ledger: list[str] = []
    for line in head.strip().split("\n"):
        if line.startswith(_COMMAND) and not command:
            command = line.removeprefix(_COMMAND)
        elif line.startswith(_VICTIMS) and not victims:
            victims = line.removeprefix(_VICTIMS)
        elif _LEDGER.match(line):
            ledger.append(line.removeprefix("Ledger of "))
        else:
            lines.append(line)
    parts = [_part(piece.strip("\n")) for piece in rest if piece.strip()]
    parts.sort(key=lambda part: part.place)
    return Story("\n".join(lines).strip(), victims, tuple(ledger), command, tuple(parts))


def _part(piece: str) -> Part:
    title, _, text = piece.partition("\n")
    places = [place for place, pattern in enumerate(_TITLES) if pattern.match(title)]
    return Part(places[0] if places else len(_TITLES), title.removesuffix(":"), text.strip("\n"))
