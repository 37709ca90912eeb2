"""Compares the collective calls of ranks that have passed, where the user asks for it: `--dist-strict-collectives`.

The rank service reads torch's flight recorder at the end of each such case, and tells the watcher of the world.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, WorldWatcher
from dist_testing.core.ground.case import CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_compare import differences
from dist_testing.hang.call_messages import CALLS, CallsMade, GroupCalls
from dist_testing.hang.ledger import TORCH_LIMITS_MS
from dist_testing.hang.ledger_thread import (
    MAX_TEXT,
    entries_of,
    known_groups,
    last_record,
    recorded_text,
    recorder_size,
)
from dist_testing.hang.waits import C10D

ADD_ON = "calls"


class CallComparison(WorldWatcher):
    """Fails a case whose ranks have passed and made different calls."""

    def __init__(self, world: WatchedWorld) -> None:
        del world
        self._told: dict[int, CallsMade] = {}

    def begin_case(self, start: CaseStart) -> None:
        """Forget the calls of the last case."""
        self._told = {}

    def on_message(self, rank: int, payload: str) -> None:
        """Note the calls of a rank."""
        self._told[rank] = CALLS.from_wire(payload)

    def explain(self, result: CaseResult) -> CaseResult:
        """Compare the calls."""
        if result.verdict.status is not Status.PASSED or not (found := differences(self._told)):
            return result
        reason = f"{Cause.CALLS.value}: {'; '.join(found)}"
        return dataclasses.replace(result, verdict=Verdict(Status.FAILED, Cause.CALLS, reason))


class CallRecord(RankService):
    """Tells which calls a rank has made. Reading the recorder costs some 10 us for each call that it holds."""

    def __init__(self, rank: ServedRank) -> None:
        self._reporter = rank.reporter
        request = rank.start.request
        self._limit_s = request.settings.timeout_s
        # A process that runs one case only has made all its calls in it, those of its start included.
        self._is_fresh = not request.pool and rank.start.fork_server_pid != os.getpid()
        # The last call of an earlier case.
        self._before = -1

    def case_begin(self, body: CaseBody) -> None:
        """Note which calls belong to earlier cases."""
        if body.strict_calls and not self._is_fresh:
            self._before = last_record()

    def case_end(self, body: CaseBody) -> None:
        """Tell the calls since the case began."""
        if body.strict_calls:
            c10d: Any = sys.modules.get(C10D)
            members = {} if c10d is None else {group.name: group.ranks for group in known_groups(c10d)}
            record = recorded_text() or b""
            made = made_of(record, members, before=self._before, capacity=recorder_size(), limit_s=self._limit_s)
            self._reporter.extra(ADD_ON, CALLS.to_wire(made).decode())


def made_of(
    record: bytes, members: Mapping[str, tuple[int, ...]], *, before: int = -1, capacity: int, limit_s: float
) -> CallsMade:
    """Return the calls of each group.

    Args:
        record: A dump of torch's flight recorder; empty if there is none.
        members: Ranks of the groups that exist, by the groups' names.
        before: torch's number of the last call that does not count.
        capacity: How many calls the recorder holds.
        limit_s: The limit that this library gives to groups, in seconds.
    """
    calls = recorded_calls(entries_of(record) if record else [], before)
    return grouped(calls, members, limit_s=limit_s, is_complete=len(calls) < capacity)


class RecordedCall(NamedTuple):
    """One collective of a record.

    Attributes:
        record_id: torch's number of it among all calls of the process.
        group: Name of its group.
        group_id: Number of its group, different for groups of one name.
        number: Of the call among those of its group, from 1.
        limit_ms: How long it may take, in milliseconds.
        text: As in `GroupCalls.calls`.
    """

    record_id: int
    group: str
    group_id: int
    number: int
    limit_ms: int
    text: str


def recorded_calls(entries: Sequence[Mapping[str, Any]], before: int = -1) -> list[RecordedCall]:
    """Return the collectives among the entries of a record.

    Args:
        entries: In the order in which the calls began.
        before: torch's number of the last call that does not count.
    """
    return [_call(entry) for entry in entries if int(entry["record_id"]) > before and not entry["is_p2p"]]


def _call(entry: Mapping[str, Any]) -> RecordedCall:
    dtypes = ",".join(dict.fromkeys(entry["input_dtypes"]))[:MAX_TEXT] or "-"
    return RecordedCall(
        record_id=int(entry["record_id"]),
        group=str(entry["process_group"][0])[:MAX_TEXT],
        group_id=int(entry["pg_id"]),
        number=int(entry["collective_seq_id"]),
        limit_ms=int(entry["timeout_ms"]),
        text=f"{entry['profiling_name'][:MAX_TEXT]} {dtypes} {str(entry['input_sizes'])[:MAX_TEXT]}",
    )


def grouped(
    calls: Sequence[RecordedCall], members: Mapping[str, tuple[int, ...]], *, limit_s: float, is_complete: bool
) -> CallsMade:
    """Return the calls of each group.

    Args:
        calls: In the order in which they began.
        members: Ranks of the groups that exist, by the groups' names.
        limit_s: The limit that this library gives to groups, in seconds.
        is_complete: Whether the recorder has dropped no call.
    """
    limit_ms = math.floor(1000 * limit_s)
    limits_ms = TORCH_LIMITS_MS | {limit_ms, limit_ms + 1}
    # Of groups with one name the recorder's last is the one that exists.
    newest = {call.group: call.group_id for call in calls}
    made: dict[tuple[str, int], list[RecordedCall]] = {(name, newest.get(name, 0)): [] for name in members}
    for call in calls:
        made.setdefault((call.group, call.group_id), []).append(call)
    groups = []
    for (name, number), of_group in made.items():
        # A test of limits calls on some ranks only.
        if all(call.limit_ms in limits_ms for call in of_group):
            ranks = members.get(name, ()) if number == newest.get(name, 0) else ()
            first = 1 if is_complete or not of_group else of_group[0].number
            count = first + len(of_group) - 1
            groups.append(GroupCalls(name, ranks, count, first, tuple([call.text for call in of_group])))
    return CallsMade(tuple(groups), is_complete)
