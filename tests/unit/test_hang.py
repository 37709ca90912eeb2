"""What is proven from ledgers, and what is not: every state of small random programs, and the reasons not to prove.

What is told of calls that run on a device proves nothing: the record of NCCL, as torch dumps it, and who has not come.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, verdict
from dist_testing.core.ground.procfs import writes_of
from dist_testing.hang import watch
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.ledger import Call, Ledger, Wait, WaitKind
from dist_testing.hang.ledger_thread import read_ledger
from dist_testing.hang.story import HangStory, blame_by_ledger, lines_of, mark_stuck, rank_ledgers, story_of
from dist_testing.hang.watch import DeadlockDetector
from tests.support.hang_machine import (
    LIMITS,
    Groups,
    Machine,
    Program,
    any_program,
    call,
    correct_program,
    view,
)
from tests.support.results import LIMIT_MS, entry

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)


@SETTINGS
@given(any_program(), st.lists(st.integers(0, 100), min_size=30, max_size=30))
def test_proven_exactly_when_nothing_can_end(program: tuple[Program, Groups], choices: list[int]) -> None:
    """A world that can go on must never be stopped, and one that cannot must not wait for its limit."""
    machine = Machine(*program)
    for _ in machine.run(iter(choices)):
        is_stuck = not machine.ready() and any(machine.step(rank) for rank in range(len(machine.programs)))
        analysis = analyse(machine.views(), LIMITS)
        assert analysis.is_proven == is_stuck
        story = story_of(analysis)
        if is_stuck:
            assert not set(story.culprits) & set(story.victims)
            assert set(story.victims) <= set(analysis.waiting)


@SETTINGS
@given(correct_program(), st.lists(st.integers(0, 100), min_size=60, max_size=60), st.data())
def test_correct_program_is_never_stopped(
    program: tuple[Program, Groups], choices: list[int], data: st.DataObject
) -> None:
    """At no moment, and with no rank that is slower than the others or does something else in between."""
    machine = Machine(*program)
    for _ in machine.run(iter(choices)):
        views = machine.views()
        assert not analyse(views, LIMITS).is_proven
        # Some ranks have ended an operation and not begun the next one.
        late = data.draw(st.sets(st.integers(0, len(views) - 1)))
        views = [
            replace(view, ended="", ledger=replace(view.ledger, waits=()))
            if view.rank in late and view.ledger
            else view
            for view in views
        ]
        assert not analyse(views, LIMITS).is_proven
    assert all(machine.step(rank) is None for rank in range(len(machine.programs)))


def _two(wait: Wait | None = None, *, calls: Sequence[Call] = (call("0", 1),)) -> list[RankView]:
    """Rank 0 waits for rank 1, which has ended its test."""
    groups = {"0": (0, 1)}
    wait = wait or Wait(WaitKind.COLLECTIVE, "all_reduce", "0")
    return [view(0, calls, groups, wait), view(1, (), groups, None)]


def _changed(views: list[RankView], rank: int, **changes: object) -> list[RankView]:
    ledger = views[rank].ledger
    assert ledger is not None
    return [
        replace(view, ledger=replace(ledger, **changes)) if view.rank == rank else view  # type: ignore[arg-type]
        for view in views
    ]


RECEIVE = Wait(WaitKind.RECEIVE, "recv", "0", 1, limit_ms=LIMIT_MS)
MEETING = Wait(WaitKind.MEETING, "new_group", "1", limit_ms=LIMIT_MS, ranks=(0, 1))
MONITORED = Wait(WaitKind.MONITORED, "monitored_barrier", "0", limit_ms=1_800_000)
SOME = Wait(WaitKind.SOME_COLLECTIVE, "wait")


@pytest.mark.parametrize("wait", [None, RECEIVE, MEETING, MONITORED, SOME])
def test_wait_for_a_rank_that_has_ended_is_proven(wait: Wait | None) -> None:
    """The plain case of each kind; what follows takes one reason away at a time."""
    assert analyse(_two(wait), LIMITS).is_proven
    # Of a backend that torch records by hooks, a call that has returned is waited for, unless all have begun it.
    views = _two(calls=[replace(call("0", 1, is_done=True), backend="plug")])
    assert analyse(views, LIMITS).is_proven
    assert not analyse([views[0], replace(views[0], rank=1)], LIMITS).is_proven


@pytest.mark.parametrize(
    ("views", "why"),
    [
        (_changed(_two(), 1, others=("another thread (t)",)), "has another thread (t)"),
        (_changed(_two(), 0, others=("an RPC agent",)), "has an RPC agent"),
        ([_two()[0], replace(_two()[1], ledger=None, silence="gave no answer (S)")], "gave no answer (S)"),
        (
            _changed(_two(), 0, is_recording=False),
            "waits without a record of its collectives (TORCH_FR_BUFFER_SIZE=0, or torch before 2.12)",
        ),
        (_changed(_two(), 0, groups={}), "waits in a group that is not known (0)"),
        (_changed(_two(), 0, waits=()), "has not reached the call"),
        (_two(calls=[call("0", 1, is_done=True)]), "waits for a call that has just ended"),
        (_changed(_two(), 1, others=("a group of the backend nccl",)), "has a group of the backend nccl"),
        (_two(calls=[call("0", 1, limit_ms=2000)]), "waits with a limit of the test's own"),
        (_two(replace(RECEIVE, limit_ms=0)), "waits with a limit of the test's own"),
        (_two(replace(RECEIVE, group="9")), "waits in a group that is not known"),
    ],
)
def test_not_proven(views: list[RankView], why: str) -> None:
    """Each is a way in which a world that looks locked up goes on; a stop would fail a correct test."""
    analysis = analyse(views, LIMITS)
    assert not analysis.is_proven
    assert why in analysis.free.values()


@pytest.mark.parametrize(
    "views",
    [
        # Rank 1 may have begun the call.
        _changed(_two(), 1, is_complete=False),
        _changed(_two(), 1, is_recording=False),
        _changed(_two(), 1, groups={"0": (1, 0)}),
        _changed(_two(), 1, calls=(replace(call("0", 1), generation=1),)),
        _changed(_two(), 1, last={"0": 1}),
        # One of two calls can still end.
        [
            view(0, [call("0", 1), call("1", 1)], {"0": (0, 1), "1": (0, 1)}, SOME),
            view(1, [call("1", 1)], {"0": (0, 1), "1": (0, 1)}, None),
        ],
    ],
)
def test_call_that_may_end_proves_nothing(views: list[RankView]) -> None:
    """A call that all members may have begun is on its way, however long that takes."""
    assert not analyse(views, LIMITS).is_proven


def _story(views: list[RankView]) -> HangStory:
    return story_of(analyse(views, LIMITS))


def test_deadlock_that_a_limit_of_the_test_ends_is_told() -> None:
    """If this fails, a busy rank that neither of two waits for is blamed when their limit is over."""
    waits = (replace(RECEIVE, limit_ms=2000), replace(RECEIVE, peer=0, limit_ms=2000), None)
    story = _story([replace(view(rank, (), {"0": (0, 1, 2)}, wait), ended="") for rank, wait in enumerate(waits)])
    assert (story.analysis.is_proven, story.culprits, story.victims) == (False, (), (0, 1))
    assert story.headline.startswith("ranks 0, 1 wait for each other: rank 0 in recv from rank 1")


def test_what_a_report_says_of_each_rank() -> None:
    """A report must not speak of a deadline that never came."""
    story = _story(_two())
    assert tuple(lines_of(story.analysis)) == (
        "Ledger of rank 0: waits in all_reduce (c1) #1 of the default group [[3]] Float (test_f.py:6).",
        "Ledger of rank 1: ended the test.",
    )
    outcomes = [RankOutcome(0, Kind.HUNG, operation="all_reduce"), RankOutcome(1, Kind.PASSED)]
    marked = mark_stuck(outcomes, story)
    assert marked[0].describe() == "was still in all_reduce when no rank could go on any more"
    assert marked[1] == outcomes[1]


@pytest.mark.parametrize(
    ("operation", "sizes", "dtypes", "is_proven"),
    [
        ("all_reduce", "[[4]]", "Float", True),
        ("all_reduce", "[[3]]", "Double", True),
        ("all_reduce", "[[1, 3]]", "Float", False),
        ("all_reduce", "[[3", "Float", False),
        ("scatter", "[]", "Float", False),
        ("all_to_all", "[[4]]", "Float", False),
    ],
)
def test_inputs_that_must_agree(operation: str, sizes: str, dtypes: str, is_proven: bool) -> None:
    """Inputs that differ where they must not are no correct program; others can be."""
    groups = {"0": (0, 1)}
    wait = Wait(WaitKind.COLLECTIVE, operation, "0")
    views = [
        view(0, [call("0", 1, operation)], groups, wait),
        view(1, [replace(call("0", 1, operation), sizes=sizes, dtypes=dtypes)], groups, wait),
    ]
    assert analyse(views, LIMITS).is_proven == is_proven
    if is_proven:
        assert f"rank 1 calls {operation} of {sizes} {dtypes} (test_f.py:6)" in _story(views).headline


def test_ledger_corrects_the_culprit() -> None:
    """The first error is that of the rank whose limit ran out first, which does not make it the culprit."""
    late = RankOutcome(0, Kind.RAISED, 5.0, summary="RuntimeError: Timed out waiting", collateral="late")
    outcomes = [late, RankOutcome(1, Kind.PASSED)]
    found = blame_by_ledger(verdict(outcomes), outcomes, _story(_two()))
    assert (found.cause, found.culprit, found.victims) == (Cause.HANG, 1, (0,))
    assert found.reason.startswith("rank 1 ended the test; rank 0 waits for it")


@pytest.mark.parametrize(
    "outcomes",
    [
        [RankOutcome(0, Kind.RAISED, 5.0, summary="ValueError: own"), RankOutcome(1, Kind.PASSED)],
        [RankOutcome(0, Kind.SIGNALLED, 5.0, signal=9), RankOutcome(1, Kind.PASSED)],
        # Ranks wait for each other all the time.
        [RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.PASSED)],
        # Another rank than the one that waited.
        [RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.RAISED, 5.0, summary="RuntimeError: t", collateral="late")],
    ],
)
def test_ledger_never_hides_a_failure(outcomes: list[RankOutcome]) -> None:
    """A story of an earlier moment must not replace an error that a rank has really raised."""
    found = verdict(outcomes)
    assert blame_by_ledger(found, outcomes, _story(_two())) == found


@pytest.mark.parametrize("is_undisturbed", [True, False])
def test_a_look_before_a_fault_on_purpose_is_forgotten(is_undisturbed: bool) -> None:
    """If this fails, ranks that met for a moment before a cable was cut have "proven" the wait after it."""
    world = mock.Mock(records=[], stacks_fds={}, group_limit_s=1.0, is_running=True, is_undisturbed=is_undisturbed)
    detector = DeadlockDetector(world)
    detector.latest = before = HangStory(analyse(_two(), LIMITS))
    detector.poll(-math.inf)
    assert detector.latest is (before if is_undisturbed else None)


@pytest.mark.parametrize(
    ("looks", "is_proven"),
    [
        # A message goes from a thread of one rank to one of another, and the two have little time on the CPU.
        ([({"io 0"}, b"1"), ({"io 1"}, b"2"), ({"io 0"}, b"3")], False),
        ([(set(), b"1"), (set(), b"2")], False),
        # The threads of gloo look for work, and there is none.
        ([({"io 0"}, b"1"), ({"io 1"}, b"1"), ({"io 0"}, b"1")], True),
    ],
)
def test_threads_that_were_asleep_at_different_moments(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[set[str], bytes]], is_proven: bool
) -> None:
    """If this fails, a correct test on a busy machine is stopped, or its real deadlock waits for the deadline."""
    detector = DeadlockDetector(mock.Mock(records=[mock.Mock(pid=1)], stacks_fds={}, group_limit_s=1.0))
    detector.begin_case(mock.Mock())
    seen = []
    for awake, writes in looks:
        monkeypatch.setattr(watch, "_awake", lambda _, awake=awake: awake)
        monkeypatch.setattr(watch, "writes_of", lambda _, writes=writes: writes)
        seen.append(detector._is_asleep())
    assert seen[-1] == is_proven


def test_kernel_counts_the_messages_of_gloo_and_not_the_answers_to_the_runner() -> None:
    """If this fails, a message that is on its way is not noticed, or no hang is proven."""
    here, there = socket.socketpair()
    with here, there:
        before = writes_of(os.getpid())
        here.send(b"an answer")
        assert writes_of(os.getpid()) == before
        os.writev(here.fileno(), [b"a message"])
        assert writes_of(os.getpid()) != before


_BEGUN_NS, _ENDED_NS = 1795358564972419942, 1795358564972619942
_OF_NCCL = {
    "profiling_name": "nccl:all_reduce",
    "retired": False,
    "time_created_ns": _BEGUN_NS,
    "time_discovered_completed_ns": _ENDED_NS,
}
# As torch's `_dump_nccl_trace_json` writes them: two calls of which one has not ended.
_DUMP = {
    "entries": [
        entry(2, **_OF_NCCL, state="started"),
        entry(1, **_OF_NCCL, state="completed"),
        entry(3, **{**_OF_NCCL, "profiling_name": "nccl:send 0->1"}, is_p2p=True),
    ]
}


def _call(number: int, operation: str = "all_reduce", *, is_done: bool) -> Call:
    return Call("0", 0, number, "nccl", operation, "[[3]]", "Float", is_done, LIMIT_MS, _BEGUN_NS, _ENDED_NS)


def test_record_of_nccl_is_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU has not ended is what its rank waits for, sooner or later."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "256")
    native = torch._C._distributed_c10d
    monkeypatch.setattr(native, "_dump_nccl_trace_json", lambda **_: json.dumps(_DUMP).encode(), raising=False)
    ledger = read_ledger(threading.get_ident(), set())
    assert isinstance(ledger, Ledger)
    assert ledger.device_calls == (_call(1, is_done=True), _call(2, is_done=False))
    assert not any(call.backend == "nccl" for call in ledger.calls)


@pytest.mark.parametrize("dump", [b"", b"no JSON", b'{"entries": [{}]}', b'{"entries": 3}'])
def test_garbage_is_no_ledger(monkeypatch: pytest.MonkeyPatch, dump: bytes) -> None:
    """A later torch may write something else: the rank says so, and the runner goes on without it."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "256")
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", lambda **_: dump, raising=False)
    assert not isinstance(read_ledger(threading.get_ident(), set()), Ledger)
    # An older one records NCCL only, and the ledger says that no record is kept.
    monkeypatch.setattr(torch._C, "_distributed_c10d", SimpleNamespace())
    ledger = read_ledger(threading.get_ident(), set())
    assert isinstance(ledger, Ledger)
    assert not ledger.is_recording


def _view(rank: int, calls: Sequence[Call], *, ended: str = "") -> RankView:
    known = view(rank, (), {"0": (0, 1, 2)}, None).ledger
    assert known is not None
    others = ("a group of the backend nccl",)
    ledger = replace(known, place=f"test_f.py:{6 + rank}", others=others, device_calls=tuple(calls))
    return RankView(rank, ended, ledger)


def test_rank_that_has_not_begun_is_the_culprit() -> None:
    """At the deadline the record names it, and not the stack that happens to differ."""
    waits = [_call(1, is_done=True), _call(2, is_done=False)]
    story = _story([_view(0, waits), _view(1, waits[:1]), _view(2, waits)])
    assert not story.analysis.is_proven
    assert story.headline == (
        "rank 1 has not begun it (test_f.py:7); ranks 0, 2 wait in all_reduce #2 of the default group of nccl"
    )
    assert (story.culprits, story.victims) == ((1,), (0, 2))
    assert next(lines_of(story.analysis)) == (
        "Ledger of rank 0: has a group of the backend nccl (test_f.py:6); the last collective that it ended: "
        "all_reduce #1 of the default group; not ended on nccl: all_reduce #2 of the default group [[3]] Float."
    )
    outcomes = [RankOutcome(rank, Kind.HUNG) for rank in range(3)]
    found = blame_by_ledger(verdict(outcomes), outcomes, story)
    assert (found.cause, found.culprit, found.victims, found.is_proven) == (Cause.HANG, 1, (0, 2), False)


def test_rank_that_ended_is_the_culprit() -> None:
    """The plain case of an early return. Tools that read events see what the report tells."""
    views = [_view(0, [_call(1, is_done=False)]), _view(1, [], ended="ended the test"), _view(2, [])]
    story = _story(views)
    assert story.headline.startswith("rank 1 ended the test; rank 2 has not begun it (test_f.py:8); rank 0 waits in")
    assert story.culprits == (1, 2)
    (first, *_) = rank_ledgers(analyse(views))
    assert (first.rank, first.state, first.place) == (0, "has a group of the backend nccl", "test_f.py:6")
    assert [(call.operation, call.number, call.is_done) for call in first.calls] == [("all_reduce", 1, False)]


def test_calls_that_differ_on_a_device() -> None:
    """One rank calls something else at the same number."""
    views = [_view(rank, [_call(1, "barrier" if rank == 2 else "all_reduce", is_done=False)]) for rank in range(3)]
    story = _story(views)
    assert story.headline == (
        "the ranks disagree about call #1 of the default group: rank 2 calls barrier, ranks 0, 1 call all_reduce"
    )
    assert story.culprits == (2,)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [_call(1, is_done=True)],
        # All have begun it: it runs.
        [_call(1, is_done=False)],
    ],
)
def test_nothing_is_said_of_devices_that_work(calls: list[Call]) -> None:
    """A rank that waits for its own device waits for no other rank."""
    assert _story([_view(rank, calls) for rank in range(3)]).headline == ""


def test_record_that_has_dropped_the_call() -> None:
    """A rank that is far ahead has begun it long ago."""
    views = [
        _view(0, [_call(1, is_done=False)]),
        _view(1, [_call(9, is_done=False)]),
        _view(2, [_call(1, is_done=True)]),
    ]
    story = _story(views)
    assert 1 not in story.culprits
