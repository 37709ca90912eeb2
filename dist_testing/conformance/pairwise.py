"""Chooses combinations of values so that every possible pair of values occurs together at least once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairwise(
    axes: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """Return combinations that cover every pair of values that an allowed combination can have.

    The choice is greedy and depends on the arguments alone: equal arguments give equal combinations in equal order.

    Args:
        axes: Name of each axis to its values, which are hashable.
        allowed: Whether values can stand together. It gets some axes or all of them, and must not refuse a part of a
            combination that it allows as a whole. Default: everything can.

    Returns:
        One dict per combination, with a value for each axis, in the order of the axes.
    """
    names = list(axes)
    if len(names) == 1:
        return [{names[0]: value} for value in axes[names[0]] if allowed({names[0]: value})]
    open_pairs: dict[_Pair, None] = {
        ((first, value), (second, other)): None
        for first, second in itertools.combinations(names, 2)
        for value in axes[first]
        for other in axes[second]
    }
    used: Counter[tuple[str, Any]] = Counter()
    chosen: list[dict[str, Any]] = []
    while open_pairs:
        pair = next(iter(open_pairs))
        combination = _completed(dict(pair), names, axes, allowed, open_pairs, used)
        if combination is None:
            del open_pairs[pair]
            continue
        combination = {name: combination[name] for name in names}
        chosen.append(combination)
        used.update(combination.items())
        for covered in itertools.combinations(combination.items(), 2):
            open_pairs.pop(covered, None)
    return chosen


def _completed(
    begun: dict[str, Any],
    names: Sequence[str],
    axes: Mapping[str, Sequence[Any]],
    allowed: Callable[[Mapping[str, Any]], bool],
    open_pairs: Mapping[_Pair, None],
    used: Counter[tuple[str, Any]],
) -> dict[str, Any] | None:
    """Return an allowed combination with these values, that covers many open pairs; None if there is none."""
    if not allowed(begun):
        return None
    missing = [name for name in names if name not in begun]
    if not missing:
        return begun
    name = missing[0]
    position = {other: index for index, other in enumerate(names)}

    def worth(value: Any) -> tuple[int, int]:
        new = 0
        for item in begun.items():
            ordered = (item, (name, value)) if position[item[0]] < position[name] else ((name, value), item)
            new += ordered in open_pairs
        return (-new, used[name, value])

    for value in sorted(axes[name], key=worth):
        found = _completed({**begun, name: value}, names, axes, allowed, open_pairs, used)
        if found is not None:
            return found
    return None
