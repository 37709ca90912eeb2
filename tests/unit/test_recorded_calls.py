"""What the runner makes of a flight record that a rank has sent: what the rank would have told, or a refusal."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from dist_testing.engine.rank_record import RankRecord
from dist_testing.outcomes import Kind
from dist_testing.process.board import PhaseBoard
from dist_testing.process.ledger import Group
from dist_testing.process.rank_messages import CallsMade, CallsRecorded, GroupCalls, RankReport, Ready
from dist_testing.process.recorded_calls import MAX_RECORD_BYTES, read_record
from dist_testing.rank.call_record import CallRecord
from dist_testing.rank.reporter import FrameWriter

_LIMIT_S = 270.0
_ENTRY = {
    "collective_seq_id": 1,
    "input_dtypes": ["Float"],
    "input_sizes": [[3]],
    "is_p2p": False,
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "record_id": 0,
    "timeout_ms": 270_000,
}
_REDUCE = "gloo:all_reduce Float [[3]]"
_ALL = (0, 1)


def _entry(number: int, **more: object) -> dict[str, Any]:
    return {**_ENTRY, "collective_seq_id": number, "record_id": number - 1, **more}


def _recorded(*entries: dict[str, Any], capacity: int = 256, groups: tuple[Group, ...] = (Group("0", _ALL),)) -> Any:
    return CallsRecorded(json.dumps({"entries": entries}), capacity, groups, _LIMIT_S)


@pytest.mark.parametrize(
    ("recorded", "made"),
    [
        pytest.param(_recorded(), CallsMade((GroupCalls("0", _ALL, 0, 1, ()),), is_complete=True), id="no call"),
        pytest.param(
            CallsRecorded("", 0, (), _LIMIT_S),
            CallsMade((), is_complete=False),
            id="the recorder is off",
        ),
        pytest.param(
            _recorded(_entry(2, profiling_name="gloo:barrier", input_dtypes=[], input_sizes=[]), _entry(1)),
            CallsMade((GroupCalls("0", _ALL, 2, 1, (_REDUCE, "gloo:barrier - []")),), is_complete=True),
            id="in the order in which they began",
        ),
        pytest.param(
            _recorded(_entry(7), _entry(8), capacity=2),
            CallsMade((GroupCalls("0", _ALL, 8, 7, (_REDUCE, _REDUCE)),), is_complete=False),
            id="the recorder has dropped some",
        ),
        pytest.param(
            _recorded(_entry(1, is_p2p=True), _entry(2)),
            CallsMade((GroupCalls("0", _ALL, 1, 1, (_REDUCE,)),), is_complete=True),
            id="a send",
        ),
        pytest.param(
            _recorded(_entry(1, timeout_ms=1000)), CallsMade((), is_complete=True), id="a limit of the user's own"
        ),
        pytest.param(
            _recorded(_entry(1), _entry(2, pg_id=1, collective_seq_id=1)),
            CallsMade(
                (GroupCalls("0", _ALL, 1, 1, (_REDUCE,)), GroupCalls("0", (), 1, 1, (_REDUCE,))), is_complete=True
            ),
            id="a group that is gone, and another one of its name",
        ),
    ],
)
def test_record(recorded: CallsRecorded, made: CallsMade) -> None:
    """The comparison of the ranks must not depend on who reads the record."""
    assert read_record(recorded) == made


@pytest.mark.parametrize(
    "record",
    [
        "no JSON",
        "3",
        '{"entries": 3}',
        '{"entries": [3]}',
        '{"entries": [{}]}',
        json.dumps({"entries": [_entry(1, process_group=[])]}),
        json.dumps({"entries": [_entry(1, profiling_name=3)]}),
        json.dumps({"entries": [_entry(1, input_dtypes=[[3]])]}),
        json.dumps({"entries": [_entry(1, collective_seq_id="x")]}),
        json.dumps({"entries": [_entry(1, collective_seq_id=-1)]}),
        json.dumps({"entries": [_entry(1 << 70)]}),
        json.dumps({"entries": [_entry(1, timeout_ms=1e400)]}),
        '{"entries": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_garbage(record: str) -> None:
    """A rank runs test code, and can send anything; the runner says so and goes on."""
    with pytest.raises(ValueError, match=r"^not a flight record \(\w+: .*") as caught:
        read_record(CallsRecorded(record, 256, (), _LIMIT_S))
    assert len(str(caught.value)) <= 200


def test_garbage_fails_its_rank() -> None:
    """As any other message that cannot be read: the calls of the rank may have differed."""
    ours, theirs = socket.socketpair()
    fd = PhaseBoard.create(1)
    board = PhaseBoard(fd, 1)
    os.close(fd)
    record = RankRecord(0, ours, board)
    frames = FrameWriter(theirs)
    with theirs:
        frames.send(Ready())
        frames.send(CallsRecorded('{"entries": 3}', 256, (), _LIMIT_S))
        frames.send(RankReport(Kind.PASSED, "call"))
        assert not record.read(1.0)
    record.ended(0, 2.0)
    outcome = record.outcome()
    assert outcome.kind is Kind.UNREADABLE
    assert outcome.summary.startswith("message of a rank: CallsRecorded: not a flight record (")
    board.close()


def test_rank_reads_a_large_record_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner reads the records of all ranks one after the other. Who reads it makes no difference."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "256")
    record = CallRecord(is_fresh=True, is_strict=False, limit_s=_LIMIT_S)
    groups = (Group("0", _ALL),)
    few, many = ([_entry(number) for number in range(1, count + 1)] for count in (2, 250))
    sent = record.told(json.dumps({"entries": few}).encode(), groups)
    assert isinstance(sent, CallsRecorded)
    assert read_record(sent) == CallsMade((GroupCalls("0", _ALL, 2, 1, (_REDUCE,) * 2),), is_complete=True)
    dump = json.dumps({"entries": many}).encode()
    assert len(dump) > MAX_RECORD_BYTES
    told = record.told(dump, groups)
    assert told == CallsMade((GroupCalls("0", _ALL, 250, 1, (_REDUCE,) * 250),), is_complete=True)
