"""Faults that the runner causes by itself at given times: a plan, as a marker, a test method or a command line has it.

    faults={3: "node_down(1)", 5: "heal()"}

Programs need it, because they know no `world`; and a test that is to run as it is, with and without faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dist_testing.core.ground.case import SETTINGS
from dist_testing.core.ground.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Latest time of a fault. Seconds.
_MAX_AFTER_S = 7 * 24 * 3600.0
_EXAMPLE = 'Write faults={3: "node_down(1)", 5: "heal()"}, for example.'


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan.

    Attributes:
        after_s: When it happens, in seconds after the test has begun on all ranks.
        call: A call of `world.faults`, such as "kill(2)".
    """

    after_s: float
    call: str

    def __str__(self) -> str:
        return f"{self.call} after {self.after_s:g} s"


def read_fault_plan(subject: str, value: object, way_out: str = _EXAMPLE) -> tuple[PlannedFault, ...]:
    """Return the plan that a user gave as a table from seconds to calls, in the order of the times.

    Args:
        subject: Begins the text of an error.
        value: The user's value.
        way_out: Ends it.

    Raises:
        UsageError: If it is no such table.
    """
    if not isinstance(value, dict) or not all(
        type(after_s) in (int, float) and 0 <= after_s <= _MAX_AFTER_S and isinstance(call, str)
        for after_s, call in value.items()
    ):
        raise UsageError(
            f"{subject}: faults = {value!r}.\n"
            "It maps seconds, from 0, after the test has begun on all ranks, to calls of world.faults.\n"
            f"{way_out}"
        )
    return tuple(sorted((PlannedFault(float(at), call) for at, call in value.items()), key=lambda one: one.after_s))


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
        setattr(function, SETTINGS, getattr(function, SETTINGS, {}) | {"faults": plan})
        return function

    return decorator
