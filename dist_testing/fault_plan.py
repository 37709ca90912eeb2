"""Faults that the runner causes by itself at given times: a plan, as a marker or a command line writes it.

    faults={3: "node_down(1)", 5: "heal()"}

Programs need it, because they know no `world`; and a test that is to run as it is, with and without faults.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import NoReturn

from dist_testing.errors import UsageError
from dist_testing.faults import Faults

# The calls of `world.faults` that a plan can have. A delay belongs to a barrier of the test.
_CALLS = ("kill", "stop", "cont", "node_down", "partition", "heal", "wire")
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

    def ask(self, faults: Faults) -> None:
        """Make the call.

        Raises:
            UsageError: If it is none of `world.faults`, or if that refuses it.
        """
        try:
            tree = ast.parse(self.call.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._refuse()
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id not in _CALLS:
            self._refuse()
        try:
            values = [ast.literal_eval(value) for value in tree.args]
            named = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
            getattr(faults, tree.func.id)(*values, **named)
        except (ValueError, TypeError, RecursionError, MemoryError):
            # Not a plain value, or not the arguments of the call.
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"world.faults: planned fault {self.call!r}.\n"
            f"A plan has calls with plain values, of {', '.join(_CALLS)}.\n"
            'Write "kill(2)", or "wire(loss=0.01, seed=7)", for example.'
        )


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
