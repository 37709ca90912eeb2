"""Makes event streams and build events for tests of the report."""

from __future__ import annotations

import json
import random
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

# Events of one case take this long here. Seconds.
CASE_S = 0.25
WALL_ZERO_S = 1.7e9

LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a stream that a test makes up.

    Attributes:
        test: pytest's node id.
        outcome: How it ended.
        message: One line.
        text: The report of a failure.
        world_size: Number of ranks; 0 for a test in the runner.
        cause: Value of a Cause.
        culprit: The rank that failed first.
        victims: Ranks that failed because of it.
        gpu_wait_s: How long it waited for GPUs; 0 for no GPUs.
        is_cut: Whether the stream ends within the case.
        warning: A warning of rank 0.
        has_faults: Whether its plan cuts a link, and rank 0 kills rank 1.
        duration_s: Seconds of the call.
        chance: Makes the times of ranks differ; by default all ranks take the same times.
    """

    test: str
    outcome: Status = "passed"
    message: str = ""
    text: str = ""
    world_size: int = 2
    cause: str = ""
    culprit: int | None = None
    victims: Sequence[int] = ()
    gpu_wait_s: float = 0.0
    is_cut: bool = False
    warning: str = ""
    has_faults: bool = False
    duration_s: float = CASE_S
    chance: random.Random | None = None


def _ranks(case: Case) -> tuple[RankRecord, ...]:
    names = ("start", "init", "setup", "call", "teardown", "destroy")
    begin_s, end_s = case.gpu_wait_s, case.gpu_wait_s + case.duration_s
    ranks = []
    for rank in range(case.world_size):
        marks = [0.002, 0.02, 0.05, 0.06, case.duration_s - 0.02, case.duration_s - 0.01, case.duration_s - 0.001]
        if case.chance is not None:
            marks = [mark + case.chance.uniform(0, 0.008) for mark in marks]
        # As the engine writes them.
        marks = [round(begin_s + mark, DIGITS) for mark in marks]
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
                phases=tuple(Phase(name, marks[i], marks[i + 1]) for i, name in enumerate(names)),
                warnings=(f"builtins.UserWarning: {case.warning} (a.py:3)",) if case.warning and not rank else (),
            )
        )
    return tuple(ranks)


def record_of(case: Case, at_s: float) -> CaseRecord:
    """Return the record of a case that begins at some time."""
    earlier = LedgerCall("0", 0, "gloo", "broadcast", "[[3]] Float", True, 0.07, None)
    call = LedgerCall("0", 1, "gloo", "all_reduce", "[[3]] Float", False, 0.08, None)
    properties: list[tuple[str, object]] = [("world_size", case.world_size)] if case.world_size else []
    if case.cause:
        properties.append(("cause", case.cause))
    if case.culprit is not None:
        properties.append(("culprit", case.culprit))
    if case.gpu_wait_s:
        properties += [("gpus", "0, 1"), ("gpu_wait_s", f"{case.gpu_wait_s:.3f}")]
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
        properties=tuple(properties),
    )


def stream_events(cases: Sequence[Case], *, target: str = "", collected: int | None = None) -> list[Event]:
    """Return the events of a run of these cases, one after the other. It ends within the first cut case."""
    versions = {"python": "3.12.1", "torch": "2.13.0", "pytest": "8.4.0"}
    events: list[Event] = [RunStarted(100.0, SCHEMA, WALL_ZERO_S, target, "gloo", versions)]
    events.append(TestsCollected(100.0, len(cases) if collected is None else collected))
    at_s = 101.0
    for case in cases:
        events.append(CaseStarted(at_s, case.test))
        if case.is_cut:
            return events
        record = record_of(case, at_s)
        at_s += case.gpu_wait_s + case.duration_s
        events += [CaseRecorded(at_s, record), CaseEnded(at_s, case.test)]
        at_s += 0.01
    bad = any(case.outcome == "failed" for case in cases)
    return [*events, RunEnded(at_s, int(bad))]


def write_stream(path: Path, cases: Sequence[Case], *, target: str = "", collected: int | None = None) -> Path:
    """Write the event stream of a run of these cases."""
    return write_events(path, stream_events(cases, target=target, collected=collected))


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
    """A test action of build events that a test makes up.

    Attributes:
        label: The target.
        xml: Its test.xml; None for none.
        status: Bazel's word.
        more: More fields of the result.
        identity: More fields of its identity, such as the shard.
    """

    label: str
    xml: Path | None = None
    status: str = "PASSED"
    more: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)


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
    code = 3 if any(one.status != "PASSED" for one in tested) else 0
    finished = {"exitCode": {"name": "TESTS_FAILED" if code else "SUCCESS", "code": code}}
    return [*events, *more, {"id": {"buildFinished": {}}, "finished": finished}]


def write_build_events(path: Path, events: Sequence[dict[str, object]], *, is_complete: bool = True) -> Path:
    """Write build events."""
    every = [*events, LAST] if is_complete else events
    path.write_text("".join(f"{json.dumps(event)}\n" for event in every), encoding="utf-8")
    return path
