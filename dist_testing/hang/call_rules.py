"""Says when calls of one group, with one number, belong together, and in words how they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from dist_testing.core.ground.backends import all_declared
from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.hang.ledger import Call

# Operations whose inputs must have one type and one count of elements on all ranks. A scatter has an input on its root
# only, and all_to_all may split its input as the ranks agree.
_EQUAL_INPUTS = frozenset({"all_reduce", "broadcast", "reduce"})
# Some backends can gather tensors of different sizes.
_GATHERS = frozenset({"all_gather", "gather"})
_DEFAULT_GROUP = "0"


def are_alike(calls: Iterable[Call]) -> bool:
    """Return whether calls can be one collective of one group: each rank's part of it.

    The recorder does not tell the splits of a call, so these may differ.
    """
    every = list(calls)
    if len({call.operation for call in every}) > 1 or len({call.details for call in every if call.details}) > 1:
        return False
    if not every or not _needs_equal_inputs(every[0]):
        return True
    counts = {count for call in every if (count := _elements(call)) is not None}
    return len(counts) <= 1 and len({call.dtypes for call in every}) <= 1


def _needs_equal_inputs(call: Call) -> bool:
    if call.operation in _GATHERS:
        return all_declared(call.backend, lambda declared: "uneven_gather" not in declared.features)
    return call.operation in _EQUAL_INPUTS


def disagreement(group: str, number: int, calls: Mapping[int, Call]) -> tuple[str, tuple[int, ...]]:
    """Return how calls of one group with one number differ, in a sentence; and the rank that is alone in its call.

    Two ranks cannot show which of them is wrong, so then there is no such rank.
    """
    texts = _described(calls)
    if len(set(texts.values())) == 1:
        # Only the places differ.
        texts = {rank: f"{texts[rank]} ({call.place})" for rank, call in calls.items()}
    sides = sorted(ranks_by_text(texts).items(), key=lambda side: (len(side[1]), side[1]))
    said = []
    for text, ranks in sides:
        places = {calls[rank].place for rank in ranks}
        place = f" ({places.pop()})" if len(places) == 1 and "" not in places and not text.endswith(")") else ""
        said.append(f"{ranks_text(ranks)} {'call' if len(ranks) > 1 else 'calls'} {text}{place}")
    alone = [ranks[0] for _, ranks in sides if len(ranks) == 1]
    culprits = tuple(alone) if len(alone) == 1 and len(sides) == 2 else ()
    return f"the ranks disagree about call #{number} of {group_text(group)}: {', '.join(said)}", culprits


def _described(calls: Mapping[int, Call]) -> dict[int, str]:
    """Return each rank's call by what differs, such as "all_reduce", or "all_reduce of [[3]] Float with SUM"."""
    if len({call.operation for call in calls.values()}) > 1:
        return {rank: call.operation for rank, call in calls.items()}
    differ = len({call.details for call in calls.values()}) > 1
    return {
        rank: f"{call.operation} of {inputs_text(call)} {call.details if differ else ''}".rstrip()
        for rank, call in calls.items()
    }


def inputs_text(call: Call) -> str:
    """Return such as "[[3]] Float"."""
    return f"{call.sizes} {call.dtypes}".rstrip()


def at(place: str) -> str:
    """Return such as " (test_x.py:9)"; "" for a place that is not known."""
    return f" ({place})" if place else ""


def group_text(name: str) -> str:
    """Return such as "the default group", or "group 1"."""
    return "the default group" if name == _DEFAULT_GROUP else f"group {name}"


def _elements(call: Call) -> int | None:
    """How many elements the inputs have together; None if that is not known, because the text was cut off."""
    try:
        shapes = json.loads(call.sizes)
        return sum(math.prod(map(int, shape)) for shape in shapes)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
