"""Chooses combinations of values so that every possible pair of values occurs together at least once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def pairwise(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return combinations that cover every pair of values that an allowed combination can have.

    The choice is greedy and depends on the arguments alone: equal arguments give equal combinations in equal order.
    There are two axes at least, with hashable values, and every combination has a value for each axis, in their order.
    `allowed` gets some axes or all of them, and must not refuse a part of a combination that it allows as a whole.
    """
    # In a dict, because it keeps their order. A pair is the set of its two axes with their values.
    open_pairs = {
        frozenset({(first, value), (second, other)}): None
        for first, second in itertools.combinations(axes, 2)
        for value in axes[first]
        for other in axes[second]
    }
    used: Counter[tuple[str, Any]] = Counter()
    chosen: list[dict[str, Any]] = []

    def completed(begun: dict[str, Any]) -> dict[str, Any] | None:
        """Return an allowed combination with these values, that covers many open pairs; None if there is none."""
        if not allowed(begun):
            return None
        name = next((name for name in axes if name not in begun), None)
        if name is None:
            return begun

        def worth(value: Any) -> tuple[int, int]:
            new = sum(frozenset({item, (name, value)}) in open_pairs for item in begun.items())
            return (-new, used[name, value])

        # Lazily: most often the first value leads to a combination.
        every = (completed({**begun, name: value}) for value in sorted(axes[name], key=worth))
        return next((found for found in every if found is not None), None)

    while open_pairs:
        pair = next(iter(open_pairs))
        combination = completed(dict(pair))
        if combination is None:
            del open_pairs[pair]
            continue
        chosen.append({name: combination[name] for name in axes})
        used.update(combination.items())
        for covered in itertools.combinations(combination.items(), 2):
            open_pairs.pop(frozenset(covered), None)
    return chosen
