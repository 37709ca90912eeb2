"""Which calls of ranks that have passed differ, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dist_testing.hang.calls import CallsMade, differences
from dist_testing.hang.ledger import Call, Group
from dist_testing.hang.ledger_thread import calls_since

_ALL = (0, 1, 2)
_LIMIT_MS = 270_000
_LIMITS = frozenset({_LIMIT_MS})
_REDUCE, _BARRIER = "gloo:all_reduce Float [[3]]", "gloo:barrier - []"


def _call(number: int, text: str, *, group: str = "0", generation: int = 0, limit_ms: int = _LIMIT_MS) -> Call:
    name, dtypes, sizes = text.split(" ", 2)
    backend, _, operation = name.partition(":")
    dtypes = "" if dtypes == "-" else dtypes.replace(",", " ")
    return Call(group, generation, number, backend, operation, sizes, dtypes, is_done=True, limit_ms=limit_ms)


def _made(*texts: str, ranks: tuple[int, ...] = _ALL, first: int = 1, limit_ms: int = _LIMIT_MS) -> CallsMade:
    """The calls of a rank on one group; without `ranks` the group is gone."""
    calls = tuple(_call(number, text, limit_ms=limit_ms) for number, text in enumerate(texts, first))
    return CallsMade((Group("0", ranks),) if ranks else (), calls, is_complete=True)


@pytest.mark.parametrize(
    "other",
    [
        _made(_REDUCE, _BARRIER),
        _made("gloo:all_reduce Float [[1, 3]]", _BARRIER),
        # The text was cut off, so that nothing is known.
        _made("gloo:all_reduce Float [[3], [1", _BARRIER),
        # The recorder has dropped the first call, or all.
        replace(_made(_BARRIER, first=2), is_complete=False),
        replace(_made(), is_complete=False),
        CallsMade((), (), is_complete=True),
        # A test of limits calls on some ranks only.
        _made(_BARRIER, limit_ms=1000),
    ],
)
def test_calls_that_agree(other: CallsMade) -> None:
    """A warning about a correct test would be noise."""
    told = {0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}
    assert differences(told, _LIMITS) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (_made(_BARRIER, _BARRIER), "ranks 0, 1 made all_reduce, rank 2 made barrier as call #1 of the default group"),
        (
            _made("gloo:all_reduce Double [[3]]", _BARRIER),
            "ranks 0, 1 made all_reduce of [[3]] Float, rank 2 made all_reduce of [[3]] Double as call #1 of the "
            "default group",
        ),
        (
            _made("gloo:all_reduce - []", _BARRIER),
            "ranks 0, 1 made all_reduce of [[3]] Float, rank 2 made all_reduce of [] as call #1 of the default group",
        ),
        (
            _made("gloo:all_reduce Float,Double [[3], [4]]", _BARRIER),
            "ranks 0, 1 made all_reduce of [[3]] Float, rank 2 made all_reduce of [[3], [4]] Float Double as call #1 "
            "of the default group",
        ),
        (_made(_REDUCE), "ranks 0, 1 made 2 calls, rank 2 made 1 call of the default group"),
    ],
)
def test_calls_that_differ(other: CallsMade, said: str) -> None:
    """The reader needs both sides, and the number of the call."""
    assert differences({0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}, _LIMITS) == [said]


def test_two_groups_of_one_name() -> None:
    """Ranks 0 and 1 have one group, rank 2 has another one of that name."""
    told = {0: _made(_REDUCE, ranks=(0, 1)), 1: _made(_REDUCE, ranks=(0, 1)), 2: _made(ranks=(2,))}
    assert differences(told, _LIMITS) == []


def test_group_that_is_gone() -> None:
    """Its members are not known: a rank that has no call of it need not be one."""
    gone = _made(_REDUCE, _BARRIER, ranks=())
    assert differences({0: gone, 1: gone, 2: CallsMade((), (), is_complete=True)}, _LIMITS) == []
    fewer = _made(_REDUCE, ranks=())
    assert differences({0: gone, 1: gone, 2: fewer}, _LIMITS) == [
        "ranks 0, 1 made 2 calls, rank 2 made 1 call of the default group"
    ]
    assert differences({0: gone, 1: gone, 2: replace(fewer, is_complete=False)}, _LIMITS) == []


def test_group_that_was_made_again() -> None:
    """Calls of the old group and of the new one have the same numbers, and are not compared with each other."""
    again = (_call(1, _REDUCE), _call(1, _BARRIER, generation=1))
    made = CallsMade((Group("0", _ALL),), again, is_complete=True)
    assert differences({0: made, 1: made, 2: made}, _LIMITS) == []
    other = replace(made, calls=(_call(1, _BARRIER), _call(1, _BARRIER, generation=1)))
    assert differences({0: made, 1: made, 2: other}, _LIMITS) == [
        "ranks 0, 1 made all_reduce, rank 2 made barrier as call #1 of the default group"
    ]


def test_only_the_first_differences() -> None:
    """One call too few shifts all that follow; hundreds of groups must not fill the log."""
    groups = tuple(Group(str(number), _ALL) for number in range(9))
    told = {
        rank: CallsMade(groups, tuple(_call(1, _REDUCE, group=group.name) for group in groups[: 9 * rank]), True)
        for rank in range(2)
    }
    assert len(differences(told, _LIMITS)) == 3


_ENTRY = {
    "collective_seq_id": 1,
    "input_dtypes": ["Float"],
    "input_sizes": [[3]],
    "is_p2p": False,
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce",
    "record_id": 0,
    "retired": True,
    "timeout_ms": _LIMIT_MS,
}


def _entry(number: int, **more: object) -> dict[str, object]:
    return {**_ENTRY, "collective_seq_id": number, "record_id": number - 1, **more}


@pytest.mark.parametrize(
    ("entries", "capacity", "numbers", "is_complete"),
    [
        pytest.param([], 2, [], True, id="no call"),
        pytest.param([_entry(2), _entry(1)], 3, [1, 2], True, id="in the order in which they began"),
        pytest.param([_entry(7), _entry(8)], 2, [7, 8], False, id="the recorder has dropped some"),
        pytest.param([_entry(1, is_p2p=True), _entry(2)], 3, [2], True, id="a send"),
        pytest.param([], 0, None, False, id="the recorder is off"),
    ],
)
def test_calls_of_a_record(
    monkeypatch: pytest.MonkeyPatch, entries: list[object], capacity: int, numbers: list[int] | None, is_complete: bool
) -> None:
    """If this fails, calls that agree are a failure, or calls that differ are none."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", str(capacity))
    dump = json.dumps({"entries": entries})
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda **_: dump, raising=False)
    calls, found = calls_since(-1)
    assert (None if calls is None else [call.number for call in calls], found) == (numbers, is_complete)


def test_calls_of_earlier_cases_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker pool the record of a process has the calls of all its cases."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2")
    dump = json.dumps({"entries": [_entry(7), _entry(8)]})
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", lambda **_: dump, raising=False)
    calls, is_complete = calls_since(6)
    assert calls is not None
    assert [call.number for call in calls] == [8]
    assert is_complete
