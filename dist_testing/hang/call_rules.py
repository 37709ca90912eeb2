"""Says when calls of one group, with one number, belong together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from dist_testing.core.ground.backends import all_declared
from dist_testing.hang.ledger import Call

# Operations whose inputs must have one type and one count of elements on all ranks. A scatter has an input on its root
# only, and all_to_all may split its input as the ranks agree.
_EQUAL_INPUTS = frozenset({"all_reduce", "broadcast", "reduce"})
# Some backends can gather tensors of different sizes.
_GATHERS = frozenset({"all_gather", "gather"})


def are_alike(calls: Iterable[Call]) -> bool:
    """Return whether calls can be one collective of one group: each rank's part of it.

    The recorder does not tell the root, the reduce operation or the splits of a call, so these may differ.
    """
    every = list(calls)
    if len({call.operation for call in every}) > 1:
        return False
    if not every or not _needs_equal_inputs(every[0]):
        return True
    counts = {count for call in every if (count := _elements(call)) is not None}
    return len(counts) <= 1 and len({call.dtypes for call in every}) <= 1


def _needs_equal_inputs(call: Call) -> bool:
    if call.operation in _GATHERS:
        return all_declared(call.backend, lambda declared: "uneven_gather" not in declared.features)
    return call.operation in _EQUAL_INPUTS


def described(calls: Mapping[int, Call]) -> dict[int, str]:
    """Return each rank's call, such as "all_reduce", or "all_reduce of [[3]] Float" if all ranks call all_reduce."""
    if len({call.operation for call in calls.values()}) > 1:
        return {rank: call.operation for rank, call in calls.items()}
    return {rank: f"{call.operation} of {call.sizes} {call.dtypes}".rstrip() for rank, call in calls.items()}


def _elements(call: Call) -> int | None:
    """How many elements the inputs have together; None if that is not known, because the text was cut off."""
    try:
        shapes = json.loads(call.sizes)
        return sum(math.prod(map(int, shape)) for shape in shapes)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
