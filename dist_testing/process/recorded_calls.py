"""Reads what torch's flight recorder has of the collectives of a rank: the rank can do it, and so can the runner."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dist_testing.process.ledger import TORCH_LIMITS_MS
from dist_testing.process.rank_messages import CallsMade, CallsRecorded, GroupCalls

# Of one text in a record, such as the shapes of a call's inputs. Characters.
MAX_TEXT = 200
# A larger record is read by its rank: the ranks read theirs at the same time, the runner one after the other.
MAX_RECORD_BYTES = 32 * 1024
# Of a call in its group.
_MAX_NUMBER = 1 << 61


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


def entries_of(dump: str | bytes) -> list[dict[str, Any]]:
    """Return the calls in a dump of torch's flight recorder, in the order in which they began."""
    entries: list[dict[str, Any]] | None = json.loads(dump).get("entries")
    if entries is None:
        # It has recorded nothing yet; or the size in the environment is not the one that it began with.
        return []
    return sorted(entries, key=lambda entry: int(entry["record_id"]))


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


def read_record(recorded: CallsRecorded) -> CallsMade:
    """Return the calls of each group, as the rank itself would have told them.

    Raises:
        ValueError: If the record is none of torch's; a rank can send anything.
    """
    try:
        calls = recorded_calls(entries_of(recorded.record)) if recorded.record else []
        if not all(0 <= call.number <= _MAX_NUMBER for call in calls):
            raise ValueError("a number out of range")
        return grouped(
            calls,
            {group.name: group.ranks for group in recorded.groups},
            limit_s=recorded.limit_s,
            is_complete=len(calls) < recorded.capacity,
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a flight record ({type(error).__name__}: {error})"[:MAX_TEXT]) from error
