"""Faults on purpose that a test method of a class declares, and that the runner causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dist_testing.core.ground.fault_plan import PLANNED_FAULTS, read_fault_plan

_Function = TypeVar("_Function", bound=Callable[..., Any])


def planned_faults(faults: Mapping[float, str]) -> Callable[[_Function], _Function]:
    """Declare faults that the runner causes while the ranks run a test method; the test fails if one does not happen.

    Args:
        faults: Time in seconds, from 0, after the test has begun on all ranks, to a call of `world.faults`:
            `{3: "kill(2)"}`.

    Raises:
        UsageError: If `faults` is not such a table.
    """
    plan = read_fault_plan("@planned_faults", faults, 'Write @planned_faults({3: "kill(2)"}), for example.')

    def decorator(function: _Function) -> _Function:
        setattr(function, PLANNED_FAULTS, plan)
        return function

    return decorator
