"""Which calls of ranks that have passed differ, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dist_testing.hang.call_compare import differences
from dist_testing.hang.call_messages import CallsMade, GroupCalls

_ALL = (0, 1, 2)
_REDUCE, _BARRIER = "gloo:all_reduce Float [[3]]", "gloo:barrier - []"


def _made(*calls: str, ranks: tuple[int, ...] = _ALL, count: int = -1, first: int = 1) -> CallsMade:
    return CallsMade((GroupCalls("0", ranks, len(calls) if count < 0 else count, first, calls),), is_complete=True)


@pytest.mark.parametrize(
    "other",
    [
        _made(_REDUCE, _BARRIER),
        _made("gloo:all_reduce Float [[1, 3]]", _BARRIER),
        # The text was cut off, so that nothing is known.
        _made("gloo:all_reduce Float [[3], [1", _BARRIER),
        # The recorder has dropped the first call, or all.
        replace(_made(_BARRIER, count=2, first=2), is_complete=False),
        replace(_made(count=0), is_complete=False),
        CallsMade((), is_complete=True),
    ],
)
def test_calls_that_agree(other: CallsMade) -> None:
    """A warning about a correct test would be noise."""
    told = {0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}
    assert differences(told) == []


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
    assert differences({0: _made(_REDUCE, _BARRIER), 1: _made(_REDUCE, _BARRIER), 2: other}) == [said]


def test_two_groups_of_one_name() -> None:
    """Ranks 0 and 1 have one group, rank 2 has another one of that name."""
    assert differences({0: _made(_REDUCE, ranks=(0, 1)), 1: _made(_REDUCE, ranks=(0, 1)), 2: _made(ranks=(2,))}) == []


def test_group_that_is_gone() -> None:
    """Its members are not known: a rank that has no call of it need not be one."""
    gone = _made(_REDUCE, _BARRIER, ranks=())
    assert differences({0: gone, 1: gone, 2: CallsMade((), is_complete=True)}) == []
    fewer = _made(_REDUCE, ranks=())
    assert differences({0: gone, 1: gone, 2: fewer}) == [
        "ranks 0, 1 made 2 calls, rank 2 made 1 call of the default group"
    ]
    assert differences({0: gone, 1: gone, 2: replace(fewer, is_complete=False)}) == []


def test_only_the_first_differences() -> None:
    """One call too few shifts all that follow; hundreds of groups must not fill the log."""
    names = [str(number) for number in range(9)]
    told = {
        rank: CallsMade(tuple(GroupCalls(name, _ALL, rank, 1, ()) for name in names), is_complete=True)
        for rank in range(2)
    }
    assert len(differences(told)) == 3
