"""Makes event streams and build events for tests of the report."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from dist_testing.core.events.event import DIGITS, CallTimes, Event, LedgerCall, LinkEnds, Phase
from dist_testing.core.events.file import EventFile
from dist_testing.core.events.runs import RunEnded, RunStarted, TestBegan, TestEnded, TestReported, TestsCollected

# Events of one case take this long here. Seconds.
CASE_S = 0.25
WALL_ZERO_S = 1.7e9

LAST: dict[str, object] = {"id": {"progress": {}}, "lastMessage": True}


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a stream that a test makes up.

    Attributes:
        test: pytest's node id.
        outcome: Of the call: "passed", "failed", "skipped", "xfailed", "xpassed".
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
    outcome: str = "passed"
    message: str = ""
    text: str = ""
    world_size: int = 2
    cause: str = "none"
    culprit: int | None = None
    victims: Sequence[int] = ()
    gpu_wait_s: float = 0.0
    is_cut: bool = False
    warning: str = ""
    has_faults: bool = False
    duration_s: float = CASE_S
    chance: random.Random | None = None


def _case_events(number: int, case: Case, at_s: float) -> Iterable[Event]:
    yield TestBegan(at_s, case.test)
    if case.world_size:
        yield CaseAsked(at_s + 0.001, number, case.test, case.world_size, "fork", "", 300.0)
        if case.gpu_wait_s:
            yield LeaseWaitBegan(at_s + 0.001, number, case.world_size)
            at_s += case.gpu_wait_s
            yield LeaseWaitEnded(at_s + 0.001, number, "0, 1")
        yield WorldAsked(at_s + 0.002, number, number)
        for rank in range(case.world_size):
            yield RankStarted(at_s + 0.01, number, rank, 1000 + rank)
            yield RankReady(at_s + 0.02, number, rank)
        if case.is_cut:
            return
        if case.has_faults:
            yield FaultHappened(at_s + 0.1, number, "links", (), (LinkEnds(0, 1),), "cut", None, at_s + 0.09)
            yield FaultHappened(at_s + 0.11, number, "kill", (1,), (), "", 0, at_s + 0.1)
        end = at_s + case.duration_s
        for rank in range(case.world_size):
            names = ("start", "init", "setup", "call", "teardown", "destroy")
            marks = [at_s + 0.002, at_s + 0.02, at_s + 0.05, at_s + 0.06, end - 0.02, end - 0.01, end - 0.001]
            if case.chance is not None:
                marks = [mark + case.chance.uniform(0, 0.008) for mark in marks]
            # As the engine writes them.
            marks = [round(mark, DIGITS) for mark in marks]
            phases = tuple(Phase(name, marks[i], marks[i + 1]) for i, name in enumerate(names))
            yield RankPhases(end, number, rank, phases)
        for rank in case.victims:
            call = LedgerCall("0", 1, "gloo", "all_reduce", "[[3]] Float", False)
            earlier = LedgerCall("0", 0, "gloo", "broadcast", "[[3]] Float", True)
            times = (CallTimes(at_s + 0.07, None), CallTimes(at_s + 0.08, None))
            state = "waits in all_reduce #1 of the default group"
            yield RankLedgerRead(end, number, rank, state, "t.py:4", (earlier, call), times)
        if case.warning:
            yield RankWarned(end, number, 0, "builtins.UserWarning", case.warning, "a.py", 3)
        for rank in range(case.world_size):
            is_victim = rank in case.victims
            outcome = "raised" if rank == case.culprit else "stopped" if is_victim else "passed"
            what = case.message if rank == case.culprit else "was waiting in all_reduce" if is_victim else "passed"
            operation = "all_reduce" if is_victim else ""
            yield RankOutcomeKnown(
                end, number, rank, outcome, end - 0.02 + 0.001 * rank, "call", operation, what, "", None, None
            )
        status = {"failed": "failed", "skipped": "skipped"}.get(case.outcome, "passed")
        victims = tuple(case.victims)
        yield CaseJudged(end, number, status, case.cause, case.message, case.culprit, (), victims)
        yield CleanedUp(end, number, ())
        yield CaseEnded(end, number)
        at_s = end
    properties: list[tuple[str, object]] = [("world_size", case.world_size)] if case.world_size else []
    if case.cause != "none":
        properties.append(("cause", case.cause))
    if case.culprit is not None:
        properties.append(("culprit", case.culprit))
    yield TestReported(at_s, case.test, "setup", "passed", 0.0)
    yield TestReported(
        at_s,
        case.test,
        "call",
        case.outcome,
        case.duration_s,
        case.message,
        case.text,
        bool(case.text),
        tuple(properties),
    )
    yield TestReported(at_s, case.test, "teardown", "passed", 0.0)
    yield TestEnded(at_s, case.test)


def stream_events(cases: Sequence[Case], *, target: str = "", collected: int | None = None) -> list[Event]:
    """Return the events of a run of these cases, one after the other. It ends within the first cut case."""
    versions = {"python": "3.12.1", "torch": "2.13.0", "pytest": "8.4.0"}
    events: list[Event] = [RunStarted(100.0, 1, WALL_ZERO_S, target, "gloo", versions)]
    events.append(TestsCollected(100.0, len(cases) if collected is None else collected))
    at_s = 101.0
    for number, case in enumerate(cases, 1):
        events += _case_events(number, case, at_s)
        if case.is_cut:
            return events
        at_s = events[-1].at_s + 0.01
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
    started = {"uuid": "u-1", "command": "test", "buildToolVersion": "8.4.0", "startTimeMillis": "1700000000000"}
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
