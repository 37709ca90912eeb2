"""Notes which collective calls a rank makes in a case, for a comparison with the other ranks.

torch's flight recorder costs some 10 us for each call that it holds, so it is read once per case, and only by ranks
that live for one case, or where a difference fails the case. Other ranks tell how many calls they have made on each
group, which costs a microsecond.
"""

from __future__ import annotations

import sys
from typing import Any

from dist_testing.process.ledger import Call
from dist_testing.process.rank_messages import CallsMade, GroupCalls
from dist_testing.rank.ledger import is_record_complete, last_record, recorded_calls
from dist_testing.rank.waits import C10D

__all__ = ["CallRecord"]

# A group whose name is that of an earlier one is another group: torch's number of the object tells them apart.
_Key = tuple[str, int]


class CallRecord:
    """Notes the calls of one rank, from case to case."""

    def __init__(self, *, is_fresh: bool, is_strict: bool) -> None:
        """Begin the first case.

        Args:
            is_fresh: Whether the process runs one case only.
            is_strict: Whether a difference fails the case.
        """
        self._is_fresh = is_fresh
        self._before = _numbers()
        # The last call of an earlier case, whose groups can have had the same names.
        self._before_record = last_record() if is_strict and not is_fresh else -1

    def end_case(self, *, is_strict: bool) -> CallsMade:
        """Return the calls since the case began, and begin the next one.

        Args:
            is_strict: Whether a difference fails the case.
        """
        numbers = _numbers()
        before, self._before = self._before, numbers
        members = _members()
        tells_all = self._is_fresh or is_strict
        recorded = recorded_calls(self._before_record) if tells_all else []
        # Of groups with one name the recorder's last is the one that exists.
        newest = {call.group: call.generation for call in recorded}
        made: dict[tuple[str, int], list[Call]] = {}
        for call in recorded:
            made.setdefault((call.group, call.generation), []).append(call)
        groups = []
        for (name, address), number in numbers.items():
            base = before.get((name, address), 0)
            # The object of a group that is gone can have had the same address.
            base = base if base <= number else 0
            calls = [call for call in made.pop((name, newest.get(name, 0)), ()) if call.number > base]
            groups.append(_told(name, members.get(name, ()), number - base, calls, base))
        if is_strict:
            self._before_record = last_record()
        if self._is_fresh:
            # Groups that the test has destroyed.
            groups += [_told(name, (), len(calls), calls, 0) for (name, _), calls in made.items()]
        return CallsMade(tuple(groups), tells_all and is_record_complete(len(recorded)))


def _told(name: str, ranks: tuple[int, ...], count: int, calls: list[Call], base: int) -> GroupCalls:
    first = calls[0].number - base if calls else 1
    return GroupCalls(name, ranks, count, first, tuple(map(_text, calls)))


def _text(call: Call) -> str:
    return f"{call.backend}:{call.operation} {call.dtypes.replace(' ', ',') or '-'} {call.sizes}"


def _numbers() -> dict[_Key, int]:
    """The number of the last call of each group that can tell it."""
    c10d: Any = sys.modules.get(C10D)
    found = {}
    for group, name in list(c10d._world.pg_names.items()) if c10d is not None else ():
        try:
            found[str(name), id(group)] = int(group._get_sequence_number_for_group())
        except (AttributeError, RuntimeError, TypeError):
            # A backend need not count its calls.
            continue
    return found


def _members() -> dict[str, tuple[int, ...]]:
    c10d: Any = sys.modules.get(C10D)
    if c10d is None:
        return {}
    names = c10d._world.pg_names
    return {
        str(names[group]): tuple(sorted(ranks, key=ranks.__getitem__))
        for group, ranks in list(c10d._world.pg_group_ranks.items())
        if group in names
    }
