"""Decides which items of a session run side by side, and how many at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.clean import spare_cuda, unclean_reasons
from dist_testing.core.launch.isolation import Isolation
from dist_testing.jobs.count import affordable_jobs
from dist_testing.jobs.units import units_of


@dataclass(frozen=True, slots=True)
class Facts:
    """What the loop asks the runner's half of the plugin about items.

    Attributes:
        shared_ranks: Returns what ranks an item shares with others; "" for none.
        world_size: Returns the number of ranks of an item; the target's where only the class knows it.
        isolation: Returns how the ranks of an item are made.
    """

    shared_ranks: Callable[[pytest.Item], str]
    world_size: Callable[[pytest.Item], int]
    isolation: Callable[[pytest.Item], Isolation]


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs side by side.

    Attributes:
        jobs: Number of sub-runners; 1 if the runner runs all items itself.
        units: Places of the items of each unit.
    """

    jobs: int = 1
    units: Sequence[Sequence[int]] = ()


def plan_of(items: Sequence[pytest.Item], asked: int, spec: Spec, facts: Facts) -> tuple[Plan, str]:
    """Return the plan of a session, and why fewer worlds than the user asked for run at once; "" if as many do.

    Args:
        items: All items.
        asked: What the user wants: from 1, or `AUTO`.
        spec: What the target asks for.
        facts: Answers about items.
    """
    units = units_of(items, facts.shared_ranks) if asked != 1 else []
    ours = [items[place] for unit in units for place in unit]
    if not ours:
        return Plan(), ""
    sizes = [facts.world_size(item) for item in ours]
    fresh = any(facts.isolation(item).fresh_interpreter for item in ours)
    jobs, why = affordable_jobs(asked, len(units), spec, sizes, fresh=fresh)
    if jobs > 1:
        spare_cuda()
        # Sub-runners share what the runner has imported.
        importlib.import_module("torch.distributed")
        if reasons := unclean_reasons():
            return Plan(), f"the runner cannot be forked: {'; '.join(reasons)}"
    return Plan(jobs, units), why
