"""What a rank tells of its flight record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dist_testing.hang.call_messages import CallsMade, GroupCalls
from dist_testing.hang.calls import made_of

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
_Recorded = tuple[bytes, int, dict[str, tuple[int, ...]]]


def _entry(number: int, **more: object) -> dict[str, Any]:
    return {**_ENTRY, "collective_seq_id": number, "record_id": number - 1, **more}


def _recorded(*entries: dict[str, Any], capacity: int = 256) -> _Recorded:
    return json.dumps({"entries": entries}).encode(), capacity, {"0": _ALL}


@pytest.mark.parametrize(
    ("recorded", "made"),
    [
        pytest.param(_recorded(), CallsMade((GroupCalls("0", _ALL, 0, 1, ()),), is_complete=True), id="no call"),
        pytest.param(
            (b"", 0, {}),
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
def test_record(recorded: _Recorded, made: CallsMade) -> None:
    """If this fails, calls that agree are a failure, or calls that differ are none."""
    record, capacity, groups = recorded
    assert made_of(record, groups, capacity=capacity, limit_s=_LIMIT_S) == made
