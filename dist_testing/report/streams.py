"""Reads the cases of a run from its event streams: the file of one target, or those of pytest-xdist's processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dist_testing.core.events.event import (
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    Event,
    RunEnded,
    RunStarted,
    StreamCut,
    TestsCollected,
)
from dist_testing.core.events.file import iterate_events
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord, case_name
from dist_testing.report.model import Problem


@dataclass(slots=True)
class StreamRecord:
    """What the event streams of one run say."""

    first: RunStarted | None = None  # the first event; None if there is none
    # Node id to record, in the order in which the cases began. Those of files are of what pytest could not collect, or
    # skipped as a whole.
    cases: dict[str, CaseRecord] = field(default_factory=dict)
    began_at_s: dict[str, float] = field(default_factory=dict)  # when each case began
    ended: set[str] = field(default_factory=set)  # the cases that came to their end
    collected: int = 0  # number of tests that were to run
    # Exit code of the front end in each file; None if the run did not come to its end.
    exit_codes: list[int | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # time of the first and of the last event of each file
    problems: list[Problem] = field(default_factory=list)  # what could not be read, and what does not fit together

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end."""
        return None not in self.exit_codes

    @property
    def to_come(self) -> int:
        """Number of collected tests that did not begin."""
        return max(0, self.collected - len(self.began_at_s))

    def take(self, event: Event) -> None:
        """Take an event of one of the files."""
        match event:
            case CaseRecorded(record=record):
                # The controller of pytest-xdist has a record without ranks of each case of its workers.
                known = self.cases.get(record.nodeid)
                if known is None or record.ranks or not known.ranks:
                    self.cases[record.nodeid] = record
            case CaseStarted():
                self.began_at_s[event.nodeid] = min(event.at_s, self.began_at_s.get(event.nodeid, event.at_s))
                self.cases.setdefault(event.nodeid, _unfinished(event.nodeid, event.at_s))
            case CaseEnded():
                self.ended.add(event.nodeid)
            case TestsCollected():
                self.collected = max(self.collected, event.count)

    def close(self) -> None:
        """Judge what was cut off: a case that passed so far, and was never ended, is not finished."""
        for nodeid, case in self.cases.items():
            if case.status == "passed" and nodeid not in self.ended:
                self.cases[nodeid] = replace(_unfinished(nodeid, case.began_at_s), ranks=case.ranks)


def _unfinished(nodeid: str, began_at_s: float | None) -> CaseRecord:
    message = "the run ended before the test did"
    return CaseRecord(case_name(nodeid), "unfinished", nodeid, message=message, began_at_s=began_at_s)


def read_streams(paths: Sequence[tuple[Path, str]], *, is_brief: bool = False) -> StreamRecord:
    """Read the event streams of one run, each with its name for people. What stands before damage counts."""
    read = StreamRecord()
    for path, shown in paths:
        _read(read, path, shown, is_brief)
    read.close()
    return read


def _read(read: StreamRecord, path: Path, shown: str, is_brief: bool) -> None:
    first: RunStarted | None = None
    last: Event | None = None
    try:
        for event in iterate_events(path, is_brief=is_brief):
            if first is None and isinstance(event, RunStarted):
                first = event
            last = event
            read.take(event)
    except ReportError as error:
        read.problems.append(Problem(shown, str(error).replace(f"{path}: ", "", 1)))
    read.exit_codes.append(last.exit_code if isinstance(last, RunEnded) else None)
    if first is None or last is None:
        return
    read.times += [first.at_s, last.at_s]
    if isinstance(last, StreamCut):
        told = f"the file was full at {last.limit_bytes} bytes, so later events are missing"
        read.problems.append(Problem(shown, told))
    elif not isinstance(last, RunEnded):
        told = "the run did not come to its end: it was killed, or its last events are missing"
        read.problems.append(Problem(shown, told))
    if read.first is not None and first.target != read.first.target:
        told = f"the file is of {first.target!r}, the others are of {read.first.target!r}"
        read.problems.append(Problem(shown, told))
    read.first = read.first or first
