"""Deals the cases of a target out to its shards."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ShardCase", "assign_shards"]

# Cases that share kept ranks stay together as long as the longest shard gets no longer than this by it.
_WORTH_OF_A_POOL = 1.1


@dataclass(frozen=True, slots=True)
class ShardCase:
    """One case to be dealt.

    Attributes:
        key: What it is known by in every shard, and in the timings; no two have the same.
        group: Cases of one group share something that is made once per shard, such as kept ranks; "" for none.
    """

    key: str
    group: str = ""


def assign_shards(cases: Sequence[ShardCase], shards: int, durations: Mapping[str, float]) -> dict[str, int]:
    """Give every case to exactly one shard.

    The longest goes first, to the shard that has least to do. Without durations all are equal, and that deals them in
    turn. The answer depends on the cases' names and not on their order, which parameters out of a `set` change from
    process to process.

    Args:
        cases: All of the target's.
        shards: How many there are.
        durations: Seconds by key. A case that is not there, a new one for example, counts as the median of the others.

    Returns:
        Shard by key.
    """
    cases = sorted(cases, key=lambda case: case.key)
    known = [durations[case.key] for case in cases if case.key in durations]
    usual = statistics.median(known) if known else 1.0
    seconds = {case.key: durations.get(case.key, usual) for case in cases}
    apart, longest_apart = _deal_units([[key] for key in seconds], seconds, shards)
    groups: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if case.group:
            groups[case.group].append(case.key)
    if not groups:
        return apart
    alone = [[case.key] for case in cases if not case.group]
    together, longest_together = _deal_units([*groups.values(), *alone], seconds, shards)
    return together if longest_together <= longest_apart * _WORTH_OF_A_POOL else apart


def _deal_units(
    units: Sequence[Sequence[str]], seconds: Mapping[str, float], shards: int
) -> tuple[dict[str, int], float]:
    """Deal units of cases; returns the shard of each case, and how long the longest shard takes."""
    # Beside the seconds, the number of units: cases that take no time at all are dealt in turn, too.
    loads = [(0.0, 0)] * shards
    result = {}
    for unit in sorted(units, key=lambda unit: -sum(seconds[key] for key in unit)):
        shard = min(range(shards), key=loads.__getitem__)
        took, count = loads[shard]
        loads[shard] = (took + sum(seconds[key] for key in unit), count + 1)
        result.update(dict.fromkeys(unit, shard))
    return result, max(took for took, _ in loads)
