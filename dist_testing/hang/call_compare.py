"""Compares the collective calls of ranks that have passed: calls that differ may still end, by luck of the backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.hang.call_rules import are_alike, described
from dist_testing.hang.ledger import Call, Group
from dist_testing.hang.story import group_text

# Of one case. One difference shifts all calls after it.
_MAX_DIFFERENCES = 3


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The collective calls of a rank in a case that it has passed. The rank sends it before its report.

    Attributes:
        groups: The groups that exist at the end of the case.
        calls: In the order in which they began.
        is_complete: Whether the recorder is on, and has dropped no call.
    """

    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    is_complete: bool


CALLS: Family[CallsMade] = Family("calls of a rank", 2, (CallsMade,))


def differences(told: Mapping[int, CallsMade], limits_ms: frozenset[int]) -> list[str]:
    """Return where the ranks of a case have made different calls, in one line each, with the first of each group.

    Args:
        told: Rank to what it has told.
        limits_ms: Limits of groups for which the user has named none, in milliseconds. A group with another one is left
            out: a test of limits calls on some ranks only.
    """
    # The calls of each rank by the name of the group, and by how many groups of this name the rank has made since.
    groups: dict[tuple[str, int], dict[int, list[Call]]] = {}
    members: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for rank, made in sorted(told.items()):
        known = {group.name: group.ranks for group in made.groups}
        newest: dict[str, int] = {}
        for call in made.calls:
            newest[call.group] = max(call.generation, newest.get(call.group, 0))
        own: dict[tuple[str, int], list[Call]] = {(name, 0): [] for name in known}
        for call in made.calls:
            own.setdefault((call.group, newest[call.group] - call.generation), []).append(call)
        for (name, age), calls in own.items():
            groups.setdefault((name, age), {})[rank] = calls
            members.setdefault((name, age), set()).add(known.get(name, ()) if age == 0 else ())
    complete = {rank for rank, made in told.items() if made.is_complete}
    found = []
    for key, of_ranks in groups.items():
        has_own_limit = any(call.limit_ms not in limits_ms for calls in of_ranks.values() for call in calls)
        # Two groups can have one name, on ranks that know one of them each.
        if len(members[key]) == 1 and not has_own_limit:
            found += [f"{text} of {group_text(key[0])}" for text in _differences(of_ranks, complete)]
    return found[:_MAX_DIFFERENCES]


def _differences(of_ranks: Mapping[int, Sequence[Call]], complete: set[int]) -> Iterator[str]:
    by_number: dict[int, dict[int, Call]] = {}
    for rank, calls in of_ranks.items():
        # torch's number counts the calls of earlier cases, too.
        first = 1 if rank in complete or not calls else calls[0].number
        for number, call in enumerate(calls, first):
            by_number.setdefault(number, {})[rank] = call
    for number, by_rank in sorted(by_number.items()):
        if not are_alike(by_rank.values()):
            yield f"{_sides(by_rank)} as call #{number}"
            return
    counts: dict[int, list[int]] = {}
    for rank, calls in of_ranks.items():
        counts.setdefault(len(calls), []).append(rank)
    # A record that has dropped calls may have dropped all of a group.
    if len(counts) > 1 and complete >= of_ranks.keys():
        sides = [f"{ranks_text(ranks)} made {count} call{'s' if count != 1 else ''}" for count, ranks in counts.items()]
        yield ", ".join(sides)


def _sides(calls: Mapping[int, Call]) -> str:
    with_inputs = len({call.operation for call in calls.values()}) == 1
    sides: dict[str, list[int]] = {}
    for rank, call in calls.items():
        sides.setdefault(described(call, with_inputs=with_inputs), []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} made {text}" for text, ranks in sides.items())
