"""Says when calls of one group, with one number, belong together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from dist_testing.process.ledger import Call

__all__ = ["are_alike", "described"]

# Operations whose inputs must have one type and one count of elements on all ranks. A scatter has an input on its root
# only, and all_to_all may split its input as the ranks agree.
_EQUAL_INPUTS = frozenset({"all_reduce", "broadcast", "reduce"})
# NCCL can gather tensors of different sizes.
_EQUAL_INPUTS_OF_GLOO = _EQUAL_INPUTS | {"all_gather", "gather"}


def are_alike(calls: Iterable[Call]) -> bool:
    """Return whether calls can be one collective of one group: each rank's part of it.

    The recorder does not tell the root, the reduce operation or the splits of a call, so these may differ.
    """
    every = list(calls)
    if len({call.operation for call in every}) > 1:
        return False
    if not every or every[0].operation not in (_EQUAL_INPUTS_OF_GLOO if every[0].backend == "gloo" else _EQUAL_INPUTS):
        return True
    counts = {count for call in every if (count := _elements(call)) is not None}
    return len(counts) <= 1 and len({call.dtypes for call in every}) <= 1


def described(call: Call, *, with_inputs: bool) -> str:
    """Return such as "all_reduce", or "all_reduce of [[3]] Float"."""
    return f"{call.operation} of {call.sizes} {call.dtypes}".rstrip() if with_inputs else call.operation


def _elements(call: Call) -> int | None:
    """How many elements the inputs have together; None if that is not known, because the text was cut off."""
    try:
        shapes = json.loads(call.sizes)
        return sum(math.prod(map(int, shape)) for shape in shapes)
    except (ValueError, TypeError, RecursionError):
        return None
