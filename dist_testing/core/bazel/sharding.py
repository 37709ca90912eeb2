"""Assigns the cases of a target to its shards."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

# Cases of one worker pool stay together if the longest shard then takes at most this many times as long.
_MAX_POOL_SLOWDOWN = 1.1


def assign_shards(groups: Mapping[str, str], shards: int, durations: Mapping[str, float]) -> dict[str, int]:
    """Assign every case to exactly one shard, and return the shards by key: its unique name in every shard.

    The longest case goes first, to the shard with the least work. Without durations all cases count the same, and go to
    the shards in turn. The result depends on the names of the cases and not on their order, because parameters from a
    `set` change the order from process to process.

    Args:
        groups: Key of each case to its group. Cases of one group share something that each shard makes once, such as a
            worker pool; "" for none.
        shards: Number of shards, at least 1.
        durations: Seconds by key. A case without them, such as a new one, counts as the median of the others.
    """
    known = [durations[key] for key in groups if key in durations]
    usual = statistics.median(known) if known else 1.0
    seconds = {key: durations.get(key, usual) for key in sorted(groups)}
    units: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key in seconds:
        units[groups[key], "" if groups[key] else key].append(key)
    apart, longest_apart = _assign_units([[key] for key in seconds], seconds, shards)
    if not any(groups.values()):
        return apart
    together, longest_together = _assign_units(units.values(), seconds, shards)
    return together if longest_together <= longest_apart * _MAX_POOL_SLOWDOWN else apart


def _assign_units(
    units: Iterable[Sequence[str]], seconds: Mapping[str, float], shards: int
) -> tuple[dict[str, int], float]:
    """Assign units of cases, the longest unit first, to the shard with the least work.

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
