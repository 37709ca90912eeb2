"""Compares the collective calls of ranks that have passed: calls that differ may still end, by luck of the backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dist_testing.core.ground.error_text import ranks_text
from dist_testing.hang.call_messages import CallsMade, GroupCalls
from dist_testing.hang.call_rules import are_alike, described
from dist_testing.hang.ledger import Call
from dist_testing.hang.story import group_text

# Of one case. One difference shifts all calls after it.
_MAX_DIFFERENCES = 3


def differences(told: Mapping[int, CallsMade]) -> list[str]:
    """Return where the ranks of a case have made different calls, in one line each, with the first of each group.

    Args:
        told: Rank to what it has told.
    """
    found = []
    groups: dict[tuple[str, int], dict[int, GroupCalls]] = {}
    for rank, calls in sorted(told.items()):
        seen: dict[str, int] = {}
        for group in calls.groups:
            seen[group.group] = seen.get(group.group, 0) + 1
            groups.setdefault((group.group, seen[group.group]), {})[rank] = group
    for (name, _), of_ranks in groups.items():
        # Two groups can have one name, on ranks that know one of them each.
        if len({group.ranks for group in of_ranks.values()}) == 1:
            complete = {rank for rank in of_ranks if told[rank].is_complete}
            found += [f"{text} of {group_text(name)}" for text in _differences(of_ranks, complete)]
    return found[:_MAX_DIFFERENCES]


def _differences(of_ranks: Mapping[int, GroupCalls], complete: set[int]) -> Iterator[str]:
    if len({(group.count, group.calls) for group in of_ranks.values()}) == 1:
        return
    calls: dict[int, dict[int, Call]] = {}
    for rank, group in of_ranks.items():
        for number, text in enumerate(group.calls, group.first):
            calls.setdefault(number, {})[rank] = _call(group.group, number, text)
    for number, by_rank in sorted(calls.items()):
        if not are_alike(by_rank.values()):
            yield f"{_sides(by_rank)} as call #{number}"
            return
    counts: dict[int, list[int]] = {}
    for rank, group in of_ranks.items():
        counts.setdefault(group.count, []).append(rank)
    # A record that has dropped calls may have dropped all of a group.
    if len(counts) > 1 and complete == set(of_ranks):
        sides = [f"{ranks_text(ranks)} made {count} call{'s' if count != 1 else ''}" for count, ranks in counts.items()]
        yield ", ".join(sides)


def _sides(calls: Mapping[int, Call]) -> str:
    with_inputs = len({call.operation for call in calls.values()}) == 1
    sides: dict[str, list[int]] = {}
    for rank, call in calls.items():
        sides.setdefault(described(call, with_inputs=with_inputs), []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} made {text}" for text, ranks in sides.items())


def _call(group: str, number: int, text: str) -> Call:
    name, _, inputs = text.partition(" ")
    backend, _, operation = name.partition(":")
    dtypes, _, sizes = inputs.partition(" ")
    dtypes = "" if dtypes == "-" else dtypes.replace(",", " ")
    return Call(group, 0, number, backend, operation, sizes, dtypes, is_done=True, limit_ms=0)
