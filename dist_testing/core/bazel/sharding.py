"""Assigns the cases of a target to its shards."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Cases of one worker pool stay together if the longest shard then takes at most this many times as long.
_MAX_POOL_SLOWDOWN = 1.1


@dataclass(frozen=True, slots=True)
class ShardCase:
    """One case to assign.

    Attributes:
        key: Unique name of the case, in every shard and in the timings.
        group: Cases of one group share something that each shard makes once, such as a worker pool; "" for none.
    """

    key: str
    group: str = ""


def assign_shards(cases: Sequence[ShardCase], shards: int, durations: Mapping[str, float]) -> dict[str, int]:
    """Assign every case to exactly one shard, and return the shards by key.

    The longest case goes first, to the shard with the least work. Without durations all cases count the same, and go to
    the shards in turn. The result depends on the names of the cases and not on their order, because parameters from a
    `set` change the order from process to process.

    Durations are seconds by key. A case without one, such as a new one, counts as the median of the others.
    """
    cases = sorted(cases, key=lambda case: case.key)
    known = [durations[case.key] for case in cases if case.key in durations]
    usual = statistics.median(known) if known else 1.0
    seconds = {case.key: durations.get(case.key, usual) for case in cases}
    apart, longest_apart = assign_units([[key] for key in seconds], seconds, shards)
    groups: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        if case.group:
            groups[case.group].append(case.key)
    if not groups:
        return apart
    alone = [[case.key] for case in cases if not case.group]
    together, longest_together = assign_units([*groups.values(), *alone], seconds, shards)
    return together if longest_together <= longest_apart * _MAX_POOL_SLOWDOWN else apart


def assign_units(
    units: Sequence[Sequence[str]], seconds: Mapping[str, float], shards: int
) -> tuple[dict[str, int], float]:
    """Assign units of cases, the longest unit first, to the shard with the least work.

    Args:
        units: Keys of cases that stay together.
        seconds: Duration of each case by key.
        shards: Number of shards, at least 1.

    Returns:
        The shard of each case, and the seconds of the longest shard.
    """
    # Seconds and number of units: the number makes cases without any duration go to the shards in turn.
    loads = [(0.0, 0)] * shards
    result = {}
    for unit in sorted(units, key=lambda unit: -sum(seconds[key] for key in unit)):
        shard = min(range(shards), key=loads.__getitem__)
        took, count = loads[shard]
        loads[shard] = (took + sum(seconds[key] for key in unit), count + 1)
        result.update(dict.fromkeys(unit, shard))
    return result, max(took for took, _ in loads)
