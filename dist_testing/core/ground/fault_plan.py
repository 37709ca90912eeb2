"""Faults that the runner causes by itself at given times: a plan, as a marker or a command line writes it.

    faults={3: "node_down(1)", 5: "heal()"}

Programs need it, because they know no `world`; and a test that is to run as it is, with and without faults.
"""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.errors import UsageError

# Attribute of a test method with its plan. `functools.wraps` copies it.
PLANNED_FAULTS = "__dist_planned_faults__"
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
