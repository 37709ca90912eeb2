"""What is told of calls that run on a device: the record of NCCL, as torch dumps it, and who has not come."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, verdict
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.ledger import Call, Ledger
from dist_testing.hang.ledger_thread import read_ledger
from dist_testing.hang.story import HangStory, blame_by_ledger, lines_of, rank_ledgers, story_of
from tests.support.hang_machine import LIMIT_MS, entry, view

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


def _story(views: Sequence[RankView]) -> HangStory:
    return story_of(analyse(views))


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
