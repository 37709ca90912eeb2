"""Makes event streams, build events and runs for tests of the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_testing.core.events.event import (
    SCHEMA,
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    Event,
    RunEnded,
    RunStarted,
    TestsCollected,
)
from dist_testing.core.ground.record import (
    DIGITS,
    OF_THE_MACHINE,
    CaseRecord,
    Fault,
    Ledger,
    LedgerCall,
    LinkEnds,
    Phase,
    RankRecord,
    Status,
    case_name,
)
from dist_testing.event_file import EventFile
from dist_testing.report.model import RunRecord

# What separates the parts of a failure's text.
RULE = "-" * 100
PHASES = ("start", "init", "setup", "call", "teardown", "destroy")
# The last event of a whole file of build events.
_LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a stream that a test makes up."""

    test: str  # pytest's node id
    outcome: Status = "passed"
    message: str = ""  # one line
    text: str = ""  # the report of a failure
    world_size: int = 2  # 0 for a test in the runner
    cause: str = ""  # value of a Cause
    culprit: int | None = None
    victims: Sequence[int] = ()
    gpu_wait_s: float = 0.0  # 0 for no GPUs
    is_cut: bool = False  # whether the stream ends within the case
    warning: str = ""  # of rank 0
    has_faults: bool = False  # whether its plan cuts a link, and rank 0 kills rank 1
    duration_s: float = 0.25  # of the call


def _ranks(case: Case) -> tuple[RankRecord, ...]:
    begin_s, end_s = case.gpu_wait_s, case.gpu_wait_s + case.duration_s
    times = [0.002, 0.02, 0.05, 0.06, case.duration_s - 0.02, case.duration_s - 0.01, case.duration_s - 0.001]
    # As the engine writes them.
    marks = [round(begin_s + time, DIGITS) for time in times]
    ranks = []
    for rank in range(case.world_size):
        is_victim, is_culprit = rank in case.victims, rank == case.culprit
        ranks.append(
            RankRecord(
                rank,
                "raised" if is_culprit else "stopped" if is_victim else "passed",
                case.message if is_culprit else "was waiting in all_reduce" if is_victim else "",
                "call",
                "all_reduce" if is_victim else "",
                pid=1000 + rank,
                started_s=begin_s + 0.01,
                ready_s=begin_s + 0.02,
                seen_s=round(end_s - 0.02 + 0.001 * rank, DIGITS),
                phases=tuple(map(Phase, PHASES, marks, marks[1:])),
                warnings=(f"builtins.UserWarning: {case.warning} (a.py:3)",) if case.warning and not rank else (),
            )
        )
    return tuple(ranks)


def _record(case: Case, at_s: float) -> CaseRecord:
    """Return the record of a case that begins at some time."""
    earlier = LedgerCall("0", 0, "gloo", "broadcast", "[[3]] Float", True, 0.07, None)
    call = LedgerCall("0", 1, "gloo", "all_reduce", "[[3]] Float", False, 0.08, None)
    told = {
        "world_size": case.world_size or None,
        "cause": case.cause or None,
        "culprit": case.culprit,
        "gpus": "0, 1" if case.gpu_wait_s else None,
        "gpu_wait_s": f"{case.gpu_wait_s:.3f}" if case.gpu_wait_s else None,
    }
    faults = (
        Fault(0.1, "links", (), (LinkEnds(0, 1),), "cut", None, 0.09),
        Fault(0.11, "kill", (1,), by=0, asked_s=0.1),
    )
    waits = "waits in all_reduce #1 of the default group"
    return CaseRecord(
        case_name(case.test),
        "error" if case.cause in OF_THE_MACHINE else case.outcome,
        case.test,
        message=case.message,
        text=case.text,
        duration_s=case.duration_s,
        began_at_s=at_s,
        world_size=case.world_size,
        isolation="fork" if case.world_size else "",
        cause=case.cause,
        culprit=case.culprit,
        victims=tuple(case.victims),
        ranks=_ranks(case),
        ledgers=tuple(Ledger(rank, case.duration_s, waits, "t.py:4", (earlier, call)) for rank in case.victims),
        faults=faults if case.has_faults else (),
        properties=tuple((name, value) for name, value in told.items() if value is not None),
    )


def stream_events(
    cases: Sequence[Case], *, target: str = "", collected: int | None = None, host: str = ""
) -> list[Event]:
    """Return the events of a run of these cases, one after the other. It ends within the first cut case."""
    versions = {"python": "3.12.1", "torch": "2.13.0", "pytest": "8.4.0"}
    events: list[Event] = [RunStarted(100.0, SCHEMA, 1.7e9, target, "gloo", versions, host)]
    events.append(TestsCollected(100.0, len(cases) if collected is None else collected))
    at_s = 101.0
    for case in cases:
        events.append(CaseStarted(at_s, case.test))
        if case.is_cut:
            return events
        record = _record(case, at_s)
        at_s += case.gpu_wait_s + case.duration_s
        events += [CaseRecorded(at_s, record), CaseEnded(at_s, case.test)]
        at_s += 0.01
    return [*events, RunEnded(at_s, int(any(case.outcome == "failed" for case in cases)))]


def write_stream(
    path: Path, cases: Sequence[Case], *, target: str = "", collected: int | None = None, host: str = ""
) -> Path:
    """Write the event stream of a run of these cases."""
    return write_events(path, stream_events(cases, target=target, collected=collected, host=host))


def write_events(path: Path, events: Iterable[Event]) -> Path:
    """Write an event stream."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = EventFile(path)
    for event in events:
        file(event)
    file.close()
    return path


@dataclass(frozen=True, slots=True)
class Action:
    """A test action of build events that a test makes up."""

    label: str  # the target
    xml: Path | None = None  # its test.xml; None for none
    status: str = "PASSED"  # Bazel's word
    more: dict[str, Any] = field(default_factory=dict)  # more fields of the result
    identity: dict[str, Any] = field(default_factory=dict)  # more fields of its identity, such as the shard


def finished(code: int) -> dict[str, object]:
    """Return the event that the invocation has ended with an exit status."""
    exit_code = {"name": "TESTS_FAILED" if code else "SUCCESS", "code": code}
    return {"id": {"buildFinished": {}}, "finished": {"exitCode": exit_code}}


def build_events(tested: Sequence[Action], *more: dict[str, object], revision: str = "") -> list[dict[str, object]]:
    """Return the build events of an invocation, without the last one."""
    started = {"uuid": "u-1", "command": "test", "buildToolVersion": "8.4.0", "startTime": "2023-11-14T22:13:20Z"}
    events: list[dict[str, object]] = [{"id": {"started": {}}, "started": started}]
    if revision:
        items = [{"key": "STABLE_GIT_COMMIT", "value": revision}]
        events.append({"id": {"workspaceStatus": {}}, "workspaceStatus": {"item": items}})
    for one in tested:
        outputs = [] if one.xml is None else [{"name": "test.xml", "uri": one.xml.as_uri()}]
        result = {"testActionOutput": outputs, "status": one.status, "testAttemptDuration": "1.5s", **one.more}
        events.append({"id": {"testResult": {"label": one.label, **one.identity}}, "testResult": result})
    for label in dict.fromkeys(one.label for one in tested):
        worst = next((one.status for one in tested if one.label == label and one.status != "PASSED"), "PASSED")
        events.append({"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": worst}})
    return [*events, *more, finished(3 if any(one.status != "PASSED" for one in tested) else 0)]


def write_build_events(path: Path, events: Sequence[dict[str, object]]) -> Path:
    """Write build events."""
    path.write_text("".join(f"{json.dumps(event)}\n" for event in [*events, _LAST]), encoding="utf-8")
    return path


# Of `large_run`.
RANKS = 64
CASES = 167
CULPRIT = 7


def large_run() -> RunRecord:
    """Return a run of 64 ranks with a thousand phases each, of which one fails in the last case."""
    cases = []
    for number in range(CASES):
        begin = number * 1.7
        is_bad = number == CASES - 1
        ranks = tuple(
            RankRecord(
                rank,
                ("raised" if rank == CULPRIT else "stopped") if is_bad else "passed",
                seen_s=0.7 + rank * 0.001,
                phases=tuple(
                    Phase(name, index * 0.2 + rank * 0.001234, index * 0.2 + 0.2 + rank * 0.001234)
                    for index, name in enumerate(PHASES)
                ),
            )
            for rank in range(RANKS)
        )
        victims = tuple(rank for rank in range(RANKS) if rank != CULPRIT)
        blame: dict[str, Any] = {"culprit": CULPRIT, "victims": victims} if is_bad else {}
        status: Status = "failed" if is_bad else "passed"
        cases.append(CaseRecord(f"t.case_{number}", status, ranks=ranks, began_at_s=begin, duration_s=1.6, **blame))
    return RunRecord("//a:a", wall_zero_s=1.7e9, cases=tuple(cases))
