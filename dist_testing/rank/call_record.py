"""Notes which collective calls a rank makes in a case, for a comparison with the other ranks.

torch's flight recorder costs some 10 us for each call that it holds. So it is read once per case, and only by ranks
that live for one case, or where a difference fails the case.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from dist_testing.process.ledger import TORCH_LIMITS_MS
from dist_testing.process.rank_messages import CallsMade, GroupCalls
from dist_testing.rank.ledger import MAX_TEXT, is_record_complete, last_record, recorded_entries
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
        limit_ms = math.floor(1000 * limit_s)
        self._limits_ms = TORCH_LIMITS_MS | {limit_ms, limit_ms + 1}
        # The last call of an earlier case.
        self._before = last_record() if is_strict and not is_fresh else -1

    def end_case(self, *, is_strict: bool) -> CallsMade | None:
        """Return the calls since the case began, and begin the next one; None if that is not worth its cost.

        Args:
            is_strict: Whether a difference fails the case.
        """
        if not self._is_fresh and not is_strict:
            self._before = -1
            return None
        recorded = recorded_entries(self._before)
        if not self._is_fresh:
            self._before = last_record()
        return self.grouped(recorded, _members())

    def grouped(self, recorded: list[dict[str, Any]], members: Mapping[str, tuple[int, ...]]) -> CallsMade:
        """Return what to tell about recorded calls.

        Args:
            recorded: Entries of torch's flight recorder, in the order in which they began.
            members: Ranks of the groups that exist, by the groups' names.
        """
        is_complete = is_record_complete(len(recorded))
        # Of groups with one name the recorder's last is the one that exists.
        newest = {entry["process_group"][0]: entry["pg_id"] for entry in recorded}
        made: dict[tuple[str, int], list[dict[str, Any]]] = {(name, newest.get(name, 0)): [] for name in members}
        for entry in recorded:
            made.setdefault((entry["process_group"][0], entry["pg_id"]), []).append(entry)
        groups = []
        for (name, number), entries in made.items():
            # A test of limits calls on some ranks only.
            if all(entry["timeout_ms"] in self._limits_ms for entry in entries):
                ranks = members.get(name, ()) if number == newest.get(name, 0) else ()
                first = 1 if is_complete or not entries else entries[0]["collective_seq_id"]
                count = first + len(entries) - 1
                groups.append(GroupCalls(name, ranks, count, first, tuple(map(_text, entries))))
        return CallsMade(tuple(groups), is_complete)


def _text(entry: dict[str, Any]) -> str:
    dtypes = ",".join(dict.fromkeys(entry["input_dtypes"]))[:MAX_TEXT] or "-"
    return f"{entry['profiling_name']} {dtypes} {str(entry['input_sizes'])[:MAX_TEXT]}"


def _members() -> dict[str, tuple[int, ...]]:
    """The groups that exist, and whose members this rank knows."""
    c10d: Any = sys.modules.get(C10D)
    if c10d is None:
        return {}
    names = c10d._world.pg_names
    return {
        str(names[group]): tuple(sorted(ranks, key=ranks.__getitem__))
        for group, ranks in list(c10d._world.pg_group_ranks.items())
        if group in names
    }
