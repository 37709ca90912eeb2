"""Faults on purpose that a test method of a class declares, and that the runner causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from dist_testing.fault_plan import PlannedFault, read_fault_plan

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Part of a function's __dict__, which functools.wraps copies.
_MARK = "__dist_planned_faults__"


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
        setattr(function, _MARK, plan)
        return function

    return decorator


def declared_faults(function: Callable[..., Any] | None) -> tuple[PlannedFault, ...]:
    """Return the plan that `planned_faults` declares for a test method; empty if it is not decorated."""
    return cast(tuple[PlannedFault, ...], getattr(function, _MARK, ()))
