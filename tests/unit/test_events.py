"""Events: the form of each kind, and the stream that hands them on."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    RankOutput,
    RankPhases,
    RankReady,
    RankStarted,
    RankWarned,
    WorldAsked,
)
from dist_testing.core.events.event import CallTimes, Event, LedgerCall, LinkEnds, Phase
from dist_testing.core.events.runs import (
    ForkServerMemory,
    RunEnded,
    RunStarted,
    StreamCut,
    TestBegan,
    TestEnded,
    TestReported,
    TestsCollected,
)
from dist_testing.core.events.stream import EventStream
from dist_testing.core.events.wire import KINDS, SCHEMA, event_of
from dist_testing.core.ground.errors import InterruptedRunError

_RUN_STARTED = RunStarted(0.5, SCHEMA, 1.5e9, "//a:b", "gloo", {"python": "3.12.1"}, "worker-7")

# One of each kind, and its form: what other programs read.
_FORMS: list[tuple[Event, str]] = [
    (
        _RUN_STARTED,
        '{"event":"run_started","at_s":0.5,"schema":1,"wall_zero_s":1500000000.0,"target":"//a:b","backend":"gloo",'
        '"versions":{"python":"3.12.1"},"host":"worker-7"}',
    ),
    (TestsCollected(1.0, 7), '{"event":"tests_collected","at_s":1.0,"count":7}'),
    (
        ForkServerMemory(1.0, 1 << 26, 1 << 27, 0.25, ""),
        '{"event":"fork_server_memory","at_s":1.0,"huge_bytes":67108864,"pss_bytes":134217728,"work_s":0.25,'
        '"refusal":""}',
    ),
    (TestBegan(1.0, "a.py::b"), '{"event":"test_began","at_s":1.0,"test":"a.py::b"}'),
    (
        TestReported(1.0, "a.py::b", "call", "failed", 0.25, "boom", "a text", True, (("world_size", 2),)),
        '{"event":"test_reported","at_s":1.0,"test":"a.py::b","when":"call","outcome":"failed","duration_s":0.25,'
        '"message":"boom","text":"a text","is_distributed":true,"properties":[["world_size",2]]}',
    ),
    (TestEnded(1.0, "a.py::b"), '{"event":"test_ended","at_s":1.0,"test":"a.py::b"}'),
    (
        CaseAsked(1.0, 3, "a.py::b", 4, "pool", "a.py", 300.0),
        '{"event":"case_asked","at_s":1.0,"case":3,"name":"a.py::b","world_size":4,"isolation":"pool","pool":"a.py",'
        '"limit_s":300.0}',
    ),
    (LeaseWaitBegan(1.0, 3, 2), '{"event":"lease_wait_began","at_s":1.0,"case":3,"gpus":2}'),
    (LeaseWaitEnded(1.0, 3, "0, 1"), '{"event":"lease_wait_ended","at_s":1.0,"case":3,"gpus":"0, 1"}'),
    (WorldAsked(1.0, 3, 2), '{"event":"world_asked","at_s":1.0,"case":3,"world":2}'),
    (RankStarted(1.0, 3, 0, 4711), '{"event":"rank_started","at_s":1.0,"case":3,"rank":0,"pid":4711}'),
    (RankReady(1.0, 3, 0), '{"event":"rank_ready","at_s":1.0,"case":3,"rank":0}'),
    (
        FaultHappened(1.0, 3, "links", (), (LinkEnds(0, 1), LinkEnds(1, 0)), "cut", None, 0.75),
        '{"event":"fault","at_s":1.0,"case":3,"action":"links","ranks":[],"links":[[0,1],[1,0]],"rule":"cut","by":null,'
        '"asked_s":0.75}',
    ),
    (
        RankPhases(1.0, 3, 0, (Phase("init", 0.25, 0.5), Phase("call", 0.5, 0.75)), 1),
        '{"event":"rank_phases","at_s":1.0,"case":3,"rank":0,"phases":[["init",0.25,0.5],["call",0.5,0.75]],"lost":1}',
    ),
    (RankOutput(1.0, 3, 0, "hello"), '{"event":"rank_output","at_s":1.0,"case":3,"rank":0,"line":"hello"}'),
    (
        RankWarned(1.0, 3, 0, "builtins.UserWarning", "hm", "a.py", 12),
        '{"event":"rank_warned","at_s":1.0,"case":3,"rank":0,"category":"builtins.UserWarning","text":"hm",'
        '"filename":"a.py","line_number":12}',
    ),
    (
        RankLedgerRead(
            1.0,
            3,
            0,
            "waits in all_reduce #2 of the default group",
            "test_f.py:6",
            (LedgerCall("0", 2, "gloo", "all_reduce", "[[3]] Float", False),),
            (CallTimes(0.5, None),),
        ),
        '{"event":"rank_ledger","at_s":1.0,"case":3,"rank":0,"state":"waits in all_reduce #2 of the default group",'
        '"place":"test_f.py:6","calls":[["0",2,"gloo","all_reduce","[[3]] Float",false]],"times":[[0.5,null]]}',
    ),
    (
        RankOutcomeKnown(1.0, 3, 0, "signalled", 0.75, "call", "", "was killed", "", None, 9),
        '{"event":"rank_outcome","at_s":1.0,"case":3,"rank":0,"outcome":"signalled","seen_s":0.75,"phase":"call",'
        '"operation":"","description":"was killed","collateral":"","exit_code":null,"signal":9}',
    ),
    (
        CaseJudged(1.0, 3, "failed", "crash", "rank 0 was killed", 0, (2,), (1, 3)),
        '{"event":"verdict","at_s":1.0,"case":3,"status":"failed","cause":"crash","reason":"rank 0 was killed",'
        '"culprit":0,"failing":[2],"victims":[1,3]}',
    ),
    (CleanedUp(1.0, 3, ("sleep 9",)), '{"event":"clean_up","at_s":1.0,"case":3,"leaked":["sleep 9"]}'),
    (CaseEnded(1.0, 3), '{"event":"case_ended","at_s":1.0,"case":3,"error":""}'),
    (RunEnded(1.0, 1), '{"event":"run_ended","at_s":1.0,"exit_code":1}'),
    (StreamCut(1.0, 4096), '{"event":"stream_cut","at_s":1.0,"limit_bytes":4096}'),
]


def test_every_kind_has_a_form_here() -> None:
    """A kind that no test knows can change unseen."""
    assert [type(event) for event, _ in _FORMS] == list(KINDS)
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(("event", "form"), _FORMS, ids=[event.kind for event, _ in _FORMS])
def test_form_of_an_event(event: Event, form: str) -> None:
    """Reports of another version read it, and get the same event back."""
    assert json.dumps(event.to_wire(), separators=(",", ":")) == form
    assert event_of(json.loads(form)) == event


def test_the_page_has_every_kind_and_field() -> None:
    """Other programs are written by it."""
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE))
    fields = {kind.kind: [item.name for item in dataclasses.fields(kind)][1:] for kind in KINDS}
    assert {name: re.findall(r"\w+", row) for name, row in rows.items()} == fields


def test_times_are_told_to_the_microsecond() -> None:
    """Sixteen digits of a clock are noise that does not compress."""
    assert RunEnded(1.23456789012, 0).to_wire()["at_s"] == 1.234568


def test_what_a_newer_version_adds_is_left_out() -> None:
    """A new field or kind must not make old reports useless."""
    assert event_of({"event": "run_ended", "at_s": 1.0, "exit_code": 0, "mood": "good"}) == RunEnded(1.0, 0)
    assert event_of({"event": "rank_dreamt", "at_s": 1.0}) is None


def test_a_field_with_a_default_may_be_missing() -> None:
    """A version that did not have it yet has written the file."""
    assert event_of({"event": "case_ended", "at_s": 1, "case": 3}) == CaseEnded(1.0, 3)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ([], 'under "event"'),
        ({}, 'under "event"'),
        ({"event": ["run_ended"]}, 'under "event"'),
        ({"event": "run_ended", "at_s": 1.0}, "run_ended: exit_code is missing"),
        ({"event": "run_ended", "at_s": 1.0, "exit_code": "0"}, "exit_code = '0'; expected int"),
        ({"event": "run_ended", "at_s": 1.0, "exit_code": True}, "exit_code = True; expected int"),
        ({"event": "run_ended", "at_s": float("nan"), "exit_code": 0}, "at_s = nan; expected a finite number"),
        ({"event": "run_ended", "at_s": 10**400, "exit_code": 0}, "expected a finite number"),
        ({"event": "test_began", "at_s": 1.0, "test": 3}, "test = 3; expected str"),
        ({"event": "clean_up", "at_s": 1.0, "case": 1, "leaked": "x"}, "leaked = 'x'; expected a list, each str"),
        (
            {"event": "rank_phases", "at_s": 1.0, "case": 1, "rank": 0, "phases": [["a", 1.0]]},
            "phases = ['a', 1.0]; expected a list of str, a finite number, a finite number",
        ),
        ({**_RUN_STARTED.to_wire(), "versions": {"a": 1}}, "versions = 1; expected str"),
    ],
)
def test_no_event_is_made_of_what_is_none(wire: object, message: str) -> None:
    """A report that trusts a file fails later, and far from the file."""
    with pytest.raises(ValueError, match=r".") as caught:
        event_of(wire)
    assert message in str(caught.value)


def test_a_tool_needs_neither_torch_nor_pytest_to_read_events() -> None:
    """Reports run where only Python is."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'pytest']));"
        "from dist_testing.core.events.file import read_events; print('read')"
    )
    root = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.stdout == "read\n", ended.stderr


def _stream() -> tuple[EventStream, list[str]]:
    stream = EventStream()
    warned: list[str] = []
    stream.warn = warned.append
    return stream, warned


def test_a_sink_gets_the_kinds_that_it_names() -> None:
    """No sink gets an event that it does not want: a rank's output costs something to read."""
    stream, _ = _stream()
    got: list[Event] = []
    assert not stream.wants(*KINDS)
    stream.subscribe(got.append, TestEnded, RunEnded, name="a sink")
    for event, _ in _FORMS:
        stream.emit(event)
    assert [type(event) for event in got] == [TestEnded, RunEnded]
    assert stream.wants(*KINDS)
    assert stream.wants(RunEnded)
    assert not stream.wants(RankOutput)


def test_a_sink_that_names_no_kind_gets_all_but_output() -> None:
    """Every rank's log would be read for a file that does not hold it."""
    stream, _ = _stream()
    got: list[Event] = []
    stream.subscribe(got.append, name="a sink")
    for event, _ in _FORMS:
        stream.emit(event)
    assert got == [event for event, _ in _FORMS if not isinstance(event, RankOutput)]


def test_a_sink_that_comes_late_knows_which_run_it_is() -> None:
    """A file without its first line says neither its schema nor what its times mean."""
    stream, _ = _stream()
    stream.emit(_RUN_STARTED)
    got: list[Event] = []
    stream.subscribe(got.append, name="late")
    stream.subscribe(got.append, RunEnded, name="does not want it")
    stream.emit(TestsCollected(1.0, 1))
    assert got == [_RUN_STARTED, TestsCollected(1.0, 1)]


def test_a_sink_that_raises_is_dropped_with_one_warning() -> None:
    """A broken sink must not decide about a test, nor fill the log; the others go on."""
    stream, warned = _stream()
    calls: list[Event] = []
    got: list[Event] = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise ZeroDivisionError("no more paper")

    stream.subscribe(broken, name="the printer")
    stream.subscribe(got.append, name="a sink")
    stream.emit(TestBegan(1.0, "a"))
    stream.emit(TestEnded(2.0, "a"))
    assert calls == [TestBegan(1.0, "a")]
    assert got == [TestBegan(1.0, "a"), TestEnded(2.0, "a")]
    assert warned == [
        "dist_testing: the printer gets no more events: ZeroDivisionError: no more paper. No verdict depends on it."
    ]


def test_a_stream_whose_last_sink_was_dropped_is_not_heard() -> None:
    """The engine would go on to make events that no sink reads."""
    stream, _ = _stream()

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    stream.subscribe(broken, name="a sink")
    stream.emit(TestBegan(1.0, "a"))
    assert not stream.wants(*KINDS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, InterruptedRunError, SystemExit])
def test_what_is_not_about_the_sink_passes(error: type[BaseException]) -> None:
    """Ctrl-C and Bazel's signal come while any code runs."""
    stream, warned = _stream()
    errors = [error("stop")]

    def interrupted(event: Event) -> None:
        if errors:
            raise errors.pop()

    stream.subscribe(interrupted, name="a sink")
    with pytest.raises(error):
        stream.emit(TestBegan(1.0, "a"))
    stream.emit(TestEnded(1.0, "a"))
    assert warned == []
    assert stream.wants(*KINDS)


def test_an_essential_sink_is_not_dropped() -> None:
    """Results that lack a case would be a lie."""
    stream, warned = _stream()

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    stream.subscribe(broken, name="the results", is_essential=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.emit(TestBegan(1.0, "a"))
    assert warned == []


def test_a_log_that_cannot_be_written_does_not_matter_either() -> None:
    """A sink failed because the disk is full; so does the warning."""
    stream = EventStream()

    def fail(line: str) -> None:
        raise OSError(28, "No space left on device")

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    stream.warn = fail
    stream.subscribe(broken, name="a sink")
    stream.emit(TestBegan(1.0, "a"))
    assert not stream.wants(*KINDS)


def test_a_child_of_the_runner_emits_nothing() -> None:
    """It has the runner's open file, and would write the same lines again."""
    stream, _ = _stream()
    read, write = os.pipe()
    stream.subscribe(lambda event: os.write(write, b"x"), name="a sink")
    pid = os.fork()
    if pid == 0:
        stream.emit(TestBegan(1.0, "a"))
        os._exit(0)
    os.waitpid(pid, 0)
    stream.emit(TestBegan(1.0, "a"))
    os.close(write)
    assert os.read(read, 9) == b"x"
    os.close(read)


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        ([["call", 1.0, 2.0], ["teardown", 2, 3.5]], None),
        ([["call", 1e308, 1.7e308], ["teardown", 1.7e308, 1.7e308]], None),
        ([], None),
        ([["call", 1.0, math.inf], ["teardown", -math.inf, 3.0]], "expected a finite number"),
        ([["call", 1.0, math.nan]], "expected a finite number"),
        ([["call", True, 2.0]], "expected a finite number"),
        ([["call", 1.0, 2.0], ["teardown", 2.0]], "expected a list of str, a finite number, a finite number"),
        ([["call", 1.0, 2.0, 3.0]], "expected a list of str, a finite number, a finite number"),
        ([["call", 1.0, 2.0], "abc"], "expected a list of str, a finite number, a finite number"),
        ([[None, 1.0, 2.0]], "expected str"),
    ],
)
def test_rows_that_are_read_together_are_checked_one_by_one(phases: list[object], told: str | None) -> None:
    """If this fails, a damaged stream gives a record with values of other types, which later code cannot take."""
    wire = {"event": "rank_phases", "at_s": 1.0, "case": 1, "rank": 0, "phases": phases, "lost": 0}
    if told is not None:
        with pytest.raises(ValueError, match=told):
            event_of(wire)
        return
    event = event_of(wire)
    assert isinstance(event, RankPhases)
    assert [list(phase) for phase in event.phases] == phases
    assert all(type(phase) is Phase and type(phase.begin_s) is float for phase in event.phases)
