"""Events: the form of each kind, and the stream that hands them on."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path

import pytest

from dist_testing.core.events.event import (
    KINDS,
    ON_DEMAND,
    SCHEMA,
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    Event,
    EventStream,
    ForkServerMemory,
    RankOutput,
    RunEnded,
    RunStarted,
    StreamCut,
    TestsCollected,
    WorldEnded,
    event_of,
)
from dist_testing.core.ground.errors import InterruptedRunError
from dist_testing.core.ground.record import (
    SCHEMA_FILE,
    CaseRecord,
    Fault,
    Ledger,
    LedgerCall,
    LinkEnds,
    Phase,
    RankRecord,
)
from tests.report.schema_check import check

_RUN_STARTED = RunStarted(0.5, SCHEMA, 1.5e9, "//a:b", "gloo", {"python": "3.12.1"}, "worker-7")

_RECORD = CaseRecord(
    "a.b",
    "failed",
    "a.py::b",
    message="rank 0 was killed",
    text="a text",
    duration_s=0.25,
    began_at_s=0.5,
    world_size=2,
    isolation="pool",
    cause="crash",
    culprit=0,
    failing=(2,),
    victims=(1, 3),
    ranks=(
        RankRecord(
            0,
            "signalled",
            "was killed",
            "call",
            signal=9,
            pid=4711,
            started_s=0.125,
            ready_s=0.25,
            seen_s=0.75,
            phases=(Phase("init", 0.25, 0.5), Phase("call", 0.5, 0.75)),
            lost_phases=1,
            warnings=("UserWarning: hm (a.py:12)",),
        ),
        RankRecord(1, "stopped", operation="all_reduce", collateral="lost", exit_code=3),
    ),
    ledgers=(
        Ledger(1, 0.5, "waits in all_reduce", "f.py:6", (LedgerCall("0", 2, "gloo", "x", "[3]", False, 0.5, None),)),
    ),
    faults=(Fault(0.5, "links", (), (LinkEnds(0, 1), LinkEnds(1, 0)), "cut", None, 0.25),),
    leaked=("sleep 9",),
    tries=2,
    properties=(("world_size", 2),),
)
_RECORD_FORM = (
    '{"name":"a.b","status":"failed","nodeid":"a.py::b","message":"rank 0 was killed","text":"a text",'
    '"duration_s":0.25,"began_at_s":0.5,"world_size":2,"isolation":"pool","cause":"crash","culprit":0,"failing":[2],'
    '"victims":[1,3],"ranks":[{"rank":0,"outcome":"signalled","description":"was killed","phase":"call","signal":9,'
    '"pid":4711,"started_s":0.125,"ready_s":0.25,"seen_s":0.75,"phases":[["init",0.25,0.5],["call",0.5,0.75]],'
    '"lost_phases":1,"warnings":["UserWarning: hm (a.py:12)"]},{"rank":1,"outcome":"stopped",'
    '"operation":"all_reduce","collateral":"lost","exit_code":3}],"ledgers":[{"rank":1,"read_s":0.5,'
    '"state":"waits in all_reduce","place":"f.py:6","calls":[["0",2,"gloo","x","[3]",false,0.5,null]]}],'
    '"faults":[{"at_s":0.5,"action":"links","links":[[0,1],[1,0]],"rule":"cut","asked_s":0.25}],'
    '"leaked":["sleep 9"],"tries":2,"properties":[["world_size",2]]}'
)

# One of each kind, and its form: what other programs read.
_FORMS: list[tuple[Event, str]] = [
    (
        _RUN_STARTED,
        '{"event":"run_started","at_s":0.5,"schema":2,"wall_zero_s":1500000000.0,"target":"//a:b","backend":"gloo",'
        '"versions":{"python":"3.12.1"},"host":"worker-7"}',
    ),
    (TestsCollected(1.0, 7), '{"event":"tests_collected","at_s":1.0,"count":7}'),
    (
        ForkServerMemory(1.0, 1 << 26, 1 << 27, 0.25, "no room"),
        '{"event":"fork_server_memory","at_s":1.0,"huge_bytes":67108864,"pss_bytes":134217728,"work_s":0.25,'
        '"refusal":"no room"}',
    ),
    (CaseStarted(1.0, "a.py::b"), '{"event":"case_started","at_s":1.0,"nodeid":"a.py::b"}'),
    (RankOutput(1.0, 0, "hello"), '{"event":"rank_output","at_s":1.0,"rank":0,"line":"hello"}'),
    (WorldEnded(1.0, _RECORD), f'{{"event":"world_ended","at_s":1.0,"record":{_RECORD_FORM}}}'),
    (CaseRecorded(1.0, _RECORD), f'{{"event":"case","at_s":1.0,"record":{_RECORD_FORM}}}'),
    (CaseEnded(1.0, "a.py::b"), '{"event":"case_ended","at_s":1.0,"nodeid":"a.py::b"}'),
    (RunEnded(1.0, 1), '{"event":"run_ended","at_s":1.0,"exit_code":1}'),
    (StreamCut(1.0, 4096), '{"event":"stream_cut","at_s":1.0,"limit_bytes":4096}'),
]


def test_every_kind_has_a_form_here() -> None:
    """A kind that no test knows can change unseen."""
    assert [type(event) for event, _ in _FORMS] == list(KINDS.values())


@pytest.mark.parametrize(("event", "form"), _FORMS, ids=list(KINDS))
def test_form_of_an_event(event: Event, form: str) -> None:
    """Reports of another version read it, and get the same event back."""
    assert json.dumps(event.to_wire(), separators=(",", ":")) == form
    assert event_of(json.loads(form)) == event


def test_the_record_fits_its_schema() -> None:
    """Other programs are written by it. Each field of it occurs in the record above."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    check(json.loads(_RECORD_FORM), schema, "record")
    for kind, part in (
        (CaseRecord, schema),
        (RankRecord, schema["properties"]["ranks"]["items"]),
        (Ledger, schema["properties"]["ledgers"]["items"]),
        (Fault, schema["properties"]["faults"]["items"]),
    ):
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        assert list(part["properties"]) == list(fields)
        defaults = {name: value for name, value in fields.items() if value is not dataclasses.MISSING}
        told = {name: one["default"] for name, one in part["properties"].items() if "default" in one}
        assert told == {name: list(value) if value == () else value for name, value in defaults.items()}


def test_the_page_has_every_kind_and_field() -> None:
    """Other programs are written by it."""
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    section = page.partition("\n## Events")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
    fields = {name: [item.name for item in dataclasses.fields(kind)][1:] for name, kind in KINDS.items()}
    assert {name: re.findall(r"\w+", row) for name, row in rows.items()} == fields


def test_files_of_other_versions_are_read() -> None:
    """A new field or kind must not make old reports useless, nor a field that a version did not have yet."""
    assert event_of({"event": "run_ended", "at_s": 1.0, "exit_code": 0, "mood": "good"}) == RunEnded(1.0, 0)
    assert event_of({"event": "rank_dreamt", "at_s": 1.0}) is None
    assert event_of({"event": "run_started", "at_s": 1, "schema": 2, "wall_zero_s": 1}) == RunStarted(1.0, 2, 1.0)
    # Sixteen digits of a clock are noise that does not compress.
    assert RunEnded(1.23456789012, 0).to_wire()["at_s"] == 1.234568


def _with_phases(*phases: object) -> dict[str, object]:
    rank = {"rank": 0, "phases": list(phases)}
    return {"event": "case", "at_s": 1.0, "record": {"name": "a", "status": "passed", "ranks": [rank]}}


def test_phases_get_the_types_that_the_record_promises() -> None:
    """If this fails, later code meets lists and whole numbers where it expects phases and times."""
    event = event_of(json.loads(json.dumps(_with_phases(["call", 1.0, 2.0], ["teardown", 2, 3.5]))))
    assert isinstance(event, CaseRecorded)
    (made,) = event.record.ranks
    assert made.phases == (Phase("call", 1.0, 2.0), Phase("teardown", 2.0, 3.5))
    assert all(type(phase) is Phase and type(phase.begin_s) is float for phase in made.phases)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ([], 'under "event"'),
        ({}, 'under "event"'),
        ({"event": ["run_ended"]}, 'under "event"'),
        ({"event": "run_ended", "at_s": 1.0}, "run_ended: missing field ['exit_code']"),
        ({"event": "run_ended", "at_s": 1.0, "exit_code": "0"}, "exit_code = '0'; expected int"),
        ({"event": "run_ended", "at_s": 1.0, "exit_code": True}, "exit_code = True; expected int"),
        ({"event": "run_ended", "at_s": math.nan, "exit_code": 0}, "at_s = nan; expected a number of at most 3e+08"),
        ({"event": "run_ended", "at_s": 1e9, "exit_code": 0}, "expected a number of at most 3e+08"),
        ({"event": "run_started", "at_s": 1.0, "schema": 2, "wall_zero_s": 10**400}, "expected a finite number"),
        ({"event": "case", "at_s": 1.0, "record": {"name": "a"}}, "case: record = missing field ['status']"),
        (
            {"event": "case", "at_s": 1.0, "record": {"name": "a", "status": "passed", "leaked": "x"}},
            "record = leaked = 'x'; expected a list, each str",
        ),
        ({**_RUN_STARTED.to_wire(), "versions": {"a": 1}}, "versions = {'a': 1}; expected an object of str or null"),
        (_with_phases(["call", 1.0, 1e308]), "expected a number of at most 3e"),
        (_with_phases(["call", True, 2.0]), "expected a number of at most 3e"),
        (_with_phases(["call", 1.0, 2.0], "abc"), "expected a list of str, a number"),
        (_with_phases([None, 1.0, 2.0]), "expected str"),
        (_with_phases(["call", 1.0, 2.0], ["teardown", 2.0]), "expected a list of str, a number"),
    ],
)
def test_no_event_is_made_of_what_is_none(wire: object, message: str) -> None:
    """A report that trusts a file fails later, and far from the file."""
    with pytest.raises(ValueError, match=re.escape(message)):
        event_of(wire)


def _stream() -> tuple[EventStream, list[str]]:
    stream = EventStream()
    warned: list[str] = []
    stream.warn = warned.append
    return stream, warned


def test_a_sink_gets_the_kinds_that_it_names() -> None:
    """A sink gets no event that it does not want: a rank's output costs something to read, so it must be named."""
    stream, _ = _stream()
    got: list[Event] = []
    most: list[Event] = []
    assert not stream.wants(*KINDS.values())
    stream.subscribe(got.append, CaseEnded, RunEnded, name="a sink")
    assert not stream.wants(RankOutput)
    assert stream.wants(RunEnded)
    stream.subscribe(most.append, name="another sink")
    for event, _ in _FORMS:
        stream.emit(event)
    assert [type(event) for event in got] == [CaseEnded, RunEnded]
    assert most == [event for event, _ in _FORMS if type(event) not in ON_DEMAND]
    assert stream.wants(*KINDS.values())


def test_a_sink_that_comes_late_knows_which_run_it_is() -> None:
    """A file without its first line says neither its schema nor what its times mean."""
    stream, _ = _stream()
    stream.emit(_RUN_STARTED)
    got: list[Event] = []
    stream.subscribe(got.append, name="late")
    stream.subscribe(got.append, RunEnded, name="does not want it")
    stream.emit(TestsCollected(1.0, 1))
    assert got == [_RUN_STARTED, TestsCollected(1.0, 1)]


def _broken(stream: EventStream, *errors: type[BaseException], **how: bool) -> list[Event]:
    """Subscribe a sink that raises these errors at its first events; return the events that it got."""
    calls: list[Event] = []
    left = list(errors)

    def broken(event: Event) -> None:
        calls.append(event)
        if left:
            raise left.pop(0)("no more paper")

    stream.subscribe(broken, name="the printer", **how)
    return calls


@pytest.mark.parametrize("is_log_broken", [False, True])
def test_a_sink_that_raises_is_dropped_with_one_warning(is_log_broken: bool) -> None:
    """A broken sink must not decide about a test, nor fill the log; the others go on, even if the disk is full."""
    stream, warned = _stream()

    def warn(line: str) -> None:
        warned.append(line)
        if is_log_broken:
            raise OSError(28, "No space left on device")

    stream.warn = warn
    calls = _broken(stream, ZeroDivisionError)
    got: list[Event] = []
    stream.subscribe(got.append, CaseStarted, CaseEnded, name="a sink")
    for event in (CaseStarted(1.0, "a"), CaseEnded(2.0, "a")):
        stream.emit(event)
    assert (calls, got) == ([CaseStarted(1.0, "a")], [CaseStarted(1.0, "a"), CaseEnded(2.0, "a")])
    assert warned == [
        "dist_testing: the printer gets no more events: ZeroDivisionError: no more paper. No verdict depends on it."
    ]
    assert not stream.wants(RunEnded), "no sink that is left wants it"


@pytest.mark.parametrize(
    ("error", "is_essential"),
    [
        # Ctrl-C and Bazel's signal come while any code runs.
        (KeyboardInterrupt, False),
        (InterruptedRunError, False),
        (SystemExit, False),
        # Results that lack a case would be a lie.
        (ZeroDivisionError, True),
    ],
)
def test_an_error_that_the_run_must_know_passes_and_the_sink_stays(
    error: type[BaseException], is_essential: bool
) -> None:
    """If this fails, an interrupt is lost in a sink, or the results lack a case without a word."""
    stream, warned = _stream()
    calls = _broken(stream, error, error, is_essential=is_essential)
    for _ in range(2):
        with pytest.raises(error):
            stream.emit(CaseStarted(1.0, "a"))
    stream.emit(CaseEnded(1.0, "a"))
    assert (len(calls), warned) == (3, [])


def test_a_child_of_the_runner_emits_nothing() -> None:
    """It has the runner's open file, and would write the same lines again."""
    stream, _ = _stream()
    read, write = os.pipe()
    stream.subscribe(lambda event: os.write(write, b"x"), name="a sink")
    pid = os.fork()
    if pid == 0:
        stream.emit(CaseStarted(1.0, "a"))
        os._exit(0)
    os.waitpid(pid, 0)
    stream.emit(CaseStarted(1.0, "a"))
    os.close(write)
    assert os.read(read, 9) == b"x"
    os.close(read)
