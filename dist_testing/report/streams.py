"""Makes the cases of a run from its event streams: the file of one target, or those of pytest-xdist's processes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dist_testing.core.bazel.junit import xml_name
from dist_testing.core.events.cases import (
    CaseAsked,
    CaseEnded,
    CaseJudged,
    CleanedUp,
    FaultHappened,
    LeaseWaitBegan,
    LeaseWaitEnded,
    RankLedgerRead,
    RankOutcomeKnown,
    RankPhases,
    RankReady,
    RankStarted,
    RankWarned,
    WorldAsked,
)
from dist_testing.core.events.event import Event
from dist_testing.core.events.file import iterate_events
from dist_testing.core.events.runs import (
    RunEnded,
    RunStarted,
    StreamCut,
    TestBegan,
    TestEnded,
    TestReported,
    TestsCollected,
)
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.model import (
    BAD,
    OF_THE_MACHINE,
    CaseRecord,
    Problem,
    Status,
    bounded,
)
from dist_testing.report.ranked_case import RankedCase, fault_record

_STATUS_OF_VERDICT: Mapping[str, Status] = {"passed": "passed", "skipped": "skipped"}
_OF_PROCESSES = (RankReady, RankStarted, WorldAsked)
# Of the parts of one test, the first of these that occurs is the status of the test.
_ORDER: tuple[Status, ...] = ("failed", "xpassed", "xfailed", "skipped", "passed")


def _case_key(nodeid: str) -> str:
    """Return the name of a case by which a test.xml and an event stream agree."""
    classname, name = xml_name(nodeid)
    return f"{classname}.{name}" if classname and name else classname or name


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What the event streams of one run say.

    Attributes:
        target: Label of the target; "" outside Bazel.
        backend: Name of the backend.
        versions: Name to version of Python, torch and pytest.
        host: Name of the machine; "" if unknown.
        wall_zero_s: Wall clock when the monotonic clock was 0; None if no stream says so.
        began_at_s: Time of the first event; None if there is none.
        ended_at_s: Time of the last event.
        cases: The cases in the order in which they began.
        uncollected: Files, and what else pytest could not collect or skipped as a whole. The names are those of the
            test.xml: node ids.
        to_come: Number of collected tests that did not begin.
        exit_code: Exit code of the front end; None if the run did not come to its end.
        problems: What could not be read, and what does not fit together.
    """

    target: str
    backend: str
    versions: Mapping[str, str]
    host: str
    wall_zero_s: float | None
    began_at_s: float | None
    ended_at_s: float | None
    cases: tuple[CaseRecord, ...]
    uncollected: tuple[CaseRecord, ...]
    to_come: int
    exit_code: int | None
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Test:
    """A test of the front end while its events come in."""

    name: str
    reports: list[TestReported] = field(default_factory=list)
    began_s: float | None = None
    ended_s: float | None = None


class _Collector:
    """Takes the events of all processes of one run."""

    def __init__(self) -> None:
        self.first: RunStarted | None = None
        self.ends: list[RunEnded | None] = []
        self.times: list[float] = []
        self.tests: dict[str, _Test] = {}
        self.uncollected: dict[str, TestReported] = {}
        self.cases: dict[tuple[int, int], RankedCase] = {}
        # For each of `cases`, the test that had begun before it and had not ended, in the order of the same file. Tests
        # of worlds that run side by side overlap in time, but not in the file.
        self.during: dict[tuple[int, int], str] = {}
        self.open_test = ""
        self.collected = 0
        self.problems: list[Problem] = []

    def read(self, path: Path, shown: str, skipped: Sequence[type[Event]]) -> None:
        """Take the events of a file that can be read."""
        end: RunEnded | None = None
        last: Event | None = None
        first: RunStarted | None = None
        number = len(self.ends)
        self.open_test = ""
        try:
            for event in iterate_events(path, skipped):
                last = event
                # Most events are of these kinds.
                if type(event) is RankPhases:
                    if case := self.cases.get((number, event.case)):
                        case.phases[event.rank] = event
                    continue
                if type(event) is RankOutcomeKnown:
                    if case := self.cases.get((number, event.case)):
                        case.outcomes[event.rank] = event
                    continue
                match event:
                    case RunStarted():
                        first = first or event
                        self.times.append(event.at_s)
                    case RunEnded():
                        end = event
                    case TestsCollected():
                        self.collected = max(self.collected, event.count)
                    case TestReported(when="collect"):
                        # Every process of pytest-xdist reports it.
                        self.uncollected.setdefault(event.test, event)
                    case TestBegan() | TestEnded() | TestReported():
                        self._take_test(event)
                    case StreamCut():
                        self._say(shown, f"the file was full at {event.limit_bytes} bytes, so later events are missing")
                    case _:
                        self._take_case(number, event)
        except ReportError as error:
            self.problems.append(Problem(shown, str(error).replace(f"{path}: ", "", 1)))
        if last is not None:
            self.times.append(last.at_s)
            if end is None and not isinstance(last, StreamCut):
                self._say(shown, "the run did not come to its end: it was killed, or its last events are missing")
        if first is not None and self.first is not None and first.target != self.first.target:
            self._say(shown, f"the file is of {first.target!r}, the others are of {self.first.target!r}")
        self.first = self.first or first
        self.ends.append(end)

    def _say(self, subject: str, text: str) -> None:
        self.problems.append(Problem(subject, text))

    def _take_test(self, event: TestBegan | TestEnded | TestReported) -> None:
        test = self.tests.setdefault(event.test, _Test(event.test))
        match event:
            case TestBegan():
                self.open_test = event.test
                test.began_s = event.at_s if test.began_s is None else min(test.began_s, event.at_s)
            case TestEnded():
                self.open_test = ""
                test.ended_s = event.at_s if test.ended_s is None else max(test.ended_s, event.at_s)
            case TestReported():
                test.reports.append(event)

    def _take_case(self, number: int, event: Event) -> None:
        if isinstance(event, CaseAsked):
            self.cases[number, event.case] = RankedCase(event)
            self.during[number, event.case] = self.open_test
            return
        case = self.cases.get((number, getattr(event, "case", -1)))
        if case is None:
            return
        # The most frequent kinds come first.
        match event:
            case RankStarted():
                case.started[event.rank] = event
            case RankReady():
                case.ready[event.rank] = event.at_s
            case FaultHappened():
                case.faults.append(event)
            case RankLedgerRead():
                case.ledgers[event.rank] = event
            case RankWarned():
                place = f"{event.filename}:{event.line_number}"
                case.warnings[event.rank].append(f"{event.category}: {event.text} ({place})")
            case LeaseWaitBegan():
                case.wait_began_s = event.at_s
            case LeaseWaitEnded():
                case.gpus = event.gpus
                case.gpu_wait_s += max(0.0, event.at_s - (case.wait_began_s or event.at_s))
            case CaseJudged():
                case.verdict = event
            case CleanedUp():
                case.leaked = event.leaked
            case CaseEnded():
                case.ended = event

    def finished(self) -> StreamRecord:
        """Return what the streams say together."""
        by_name: dict[str, list[RankedCase]] = defaultdict(list)
        during: dict[str, str] = {}
        for key, ranked in self.cases.items():
            by_name[ranked.asked.name].append(ranked)
            during.setdefault(ranked.asked.name, self.during[key])
        tries = {name: by_name.pop(name, []) for name in self.tests}
        _adopt(by_name, tries, during)
        records = [_test_record(test, tries[name]) for name, test in self.tests.items()]
        records += [_case_record(name, tries) for name, tries in by_name.items()]
        records.sort(key=lambda record: (record.began_at_s is None, record.began_at_s or 0.0))
        codes = [end.exit_code for end in self.ends if end is not None]
        return StreamRecord(
            target=self.first.target if self.first else "",
            backend=self.first.backend if self.first else "",
            versions=self.first.versions if self.first else {},
            host=self.first.host if self.first else "",
            wall_zero_s=self.first.wall_zero_s if self.first else None,
            began_at_s=min(self.times, default=None),
            ended_at_s=max(self.times, default=None),
            cases=tuple(records),
            uncollected=tuple(map(_uncollected_record, self.uncollected.values())),
            to_come=max(0, self.collected - sum(test.began_s is not None for test in self.tests.values())),
            exit_code=max(codes) if codes and len(codes) == len(self.ends) else None,
            problems=tuple(self.problems),
        )


def _adopt(by_name: dict[str, list[RankedCase]], tries: dict[str, list[RankedCase]], during: Mapping[str, str]) -> None:
    """Give cases that have another name than every test to the test `during` which they ran.

    A test may run worlds of its own, and may expect them to fail: its own result counts.
    """
    for name, cases in list(by_name.items()):
        if (test := during[name]) in tries:
            del by_name[name]
            if not tries[test]:
                tries[test] = cases[-1:]


def read_streams(paths: Sequence[tuple[Path, str]], *, with_processes: bool = False) -> StreamRecord:
    """Read the event streams of one run. Damage is a problem in the result; what stands before it counts.

    Args:
        paths: Each file, and its name for people.
        with_processes: Whether to read when each process was started and ready. The page does without, in two thirds of
            the time.
    """
    collector = _Collector()
    for path, shown in paths:
        collector.read(path, shown, () if with_processes else _OF_PROCESSES)
    return collector.finished()


def _test_record(test: _Test, tries: Sequence[RankedCase]) -> CaseRecord:
    parts: dict[str, list[TestReported]] = defaultdict(list)
    for report in test.reports:
        parts[report.outcome].append(report)
    status: Status = next((status for status in _ORDER if status in parts), "unfinished")
    # A test that passed so far, and was never ended, was cut off.
    if status == "passed" and test.ended_s is None:
        status = "unfinished"
    told = parts.get(status, ())
    properties = dict(itertools.chain.from_iterable(report.properties for report in test.reports))
    cause = properties.get("cause", "")
    last = tries[-1] if tries else None
    verdict = last.verdict if last else None
    message = next((report.message for report in told if report.message), "")
    if status == "unfinished":
        message = "the run ended before the test did" + (f": {verdict.reason}" if verdict and verdict.reason else "")
    if status == "failed" and cause in OF_THE_MACHINE:
        status = "error"
    if last is not None and status not in BAD and verdict is not None:
        # No rank is to blame for a failure that was expected.
        last.verdict = verdict = replace(verdict, culprit=None, failing=(), victims=(), status="passed")
    blamed = verdict is not None and verdict.status == "failed"
    return CaseRecord(
        name=_case_key(test.name),
        status=status,
        message=message or (verdict.reason if verdict and status in BAD else ""),
        # Reports of several parts: the failure of the call, and that of the teardown.
        text="\n\n".join(dict.fromkeys(report.text for report in told if report.text)),
        duration_s=bounded(sum(report.duration_s for report in test.reports)) or _between(test.began_s, test.ended_s),
        cause=str(cause) or (verdict.cause if verdict and blamed else ""),
        began_at_s=test.began_s,
        ended_at_s=test.ended_s,
        tries=max(1, len(tries)),
        nodeid=test.name,
        **_of_ranks(last),
    )


def _uncollected_record(report: TestReported) -> CaseRecord:
    status: Status = "skipped" if report.outcome == "skipped" else "failed"
    return CaseRecord(report.test, status, report.message, report.text, nodeid=report.test)


def _case_record(name: str, tries: Sequence[RankedCase]) -> CaseRecord:
    """Return the record of a case that no test of the front end has asked for by this name."""
    last = tries[-1]
    verdict, ended = last.verdict, last.ended
    status: Status = "unfinished"
    if verdict is not None:
        status = _STATUS_OF_VERDICT.get(verdict.status, "error" if verdict.cause in OF_THE_MACHINE else "failed")
    elif ended is not None:
        status = "error"
    reason = verdict.reason if verdict else ended.error if ended else "the run ended before the case did"
    return CaseRecord(
        name=_case_key(name),
        status=status,
        message=reason,
        duration_s=_between(last.asked.at_s, ended.at_s if ended else None),
        cause=verdict.cause if verdict and verdict.status == "failed" else "",
        began_at_s=last.asked.at_s,
        ended_at_s=ended.at_s if ended else None,
        tries=len(tries),
        nodeid=name,
        **_of_ranks(last),
    )


def _of_ranks(case: RankedCase | None) -> dict[str, Any]:
    """Return the fields of a CaseRecord that the engine's events give."""
    if case is None:
        return {}
    verdict = case.verdict
    return {
        "world_size": case.asked.world_size,
        "isolation": case.asked.isolation,
        "culprit": verdict.culprit if verdict else None,
        "failing": verdict.failing if verdict else (),
        "victims": verdict.victims if verdict else (),
        "ranks": case.ranks(),
        "faults": tuple(map(fault_record, case.faults)),
        "gpu_wait_s": bounded(case.gpu_wait_s),
        "gpus": case.gpus,
        "leaked": case.leaked,
    }


def _between(began_s: float | None, ended_s: float | None) -> float:
    return bounded(ended_s - began_s) if began_s is not None and ended_s is not None else 0.0
