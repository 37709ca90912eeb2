"""Notes which collective calls a rank makes in a case, for a comparison with the other ranks.

torch's flight recorder costs some 10 us for each call that it holds. So it is read once per case, and only by ranks
that live for one case, or where a difference fails the case.
"""

from __future__ import annotations

import sys
from typing import Any

from dist_testing.process.ledger import Group
from dist_testing.process.rank_messages import CallsMade, CallsRecorded
from dist_testing.process.recorded_calls import MAX_RECORD_BYTES, entries_of, grouped, recorded_calls
from dist_testing.rank.ledger import known_groups, last_record, recorded_text, recorder_size
from dist_testing.rank.waits import C10D


class CallRecord:
    """Notes the calls of one rank, from case to case."""

    def __init__(self, *, is_fresh: bool, is_strict: bool, limit_s: float) -> None:
        """Begin the first case.

        Args:
            is_fresh: Whether the process runs one case only.
            is_strict: Whether a difference fails the case.
            limit_s: The limit that this library gives to groups, in seconds.
        """
        self._is_fresh = is_fresh
        self._limit_s = limit_s
        # The last call of an earlier case.
        self._before = last_record() if is_strict and not is_fresh else -1

    def end_case(self, *, is_strict: bool) -> CallsMade | CallsRecorded | None:
        """Return the calls since the case began, and begin the next one; None if that is not worth its cost.

        Args:
            is_strict: Whether a difference fails the case.
        """
        if not self._is_fresh and not is_strict:
            self._before = -1
            return None
        return self.told(recorded_text() or b"", _groups())

    def told(self, record: bytes, groups: tuple[Group, ...]) -> CallsMade | CallsRecorded:
        """Return what to tell about a record, in the form that costs less.

        Args:
            record: A dump of torch's flight recorder; empty if there is none.
            groups: The groups that exist, and whose members this rank knows.
        """
        if self._is_fresh and len(record) <= MAX_RECORD_BYTES:
            return CallsRecorded(record.decode("utf-8", "replace"), recorder_size(), groups, self._limit_s)
        entries = entries_of(record) if record else []
        calls = recorded_calls(entries, self._before)
        if not self._is_fresh:
            self._before = int(entries[-1]["record_id"]) if entries else -1
        members = {group.name: group.ranks for group in groups}
        return grouped(calls, members, limit_s=self._limit_s, is_complete=len(calls) < recorder_size())


def _groups() -> tuple[Group, ...]:
    """The groups that exist, and whose members this rank knows."""
    c10d: Any = sys.modules.get(C10D)
    return () if c10d is None else tuple(known_groups(c10d))
