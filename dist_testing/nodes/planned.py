"""Faults that the runner causes by itself at given times: a plan, as a marker, a test method or a command line has it.

    faults={3: "node_down(1)", 5: "heal()"}

Programs need it, because they know no `world`; and a test that is to run as it is, with and without faults. A planned
fault becomes the requests that a rank would send for it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from dist_testing.core.ground.case import SETTINGS, Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, isolation_named
from dist_testing.nodes.check import places_of
from dist_testing.nodes.faults import Faults, Request

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Latest time of a fault. Seconds.
_MAX_AFTER_S = 7 * 24 * 3600.0
_EXAMPLE = 'Write faults={3: "node_down(1)", 5: "heal()"}, for example.'
# The calls of `world.faults` that a plan can have. A delay belongs to a barrier of the test.
_CALLS = ("kill", "stop", "cont", "node_down", "partition", "heal", "wire")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan."""

    after_s: float  # when it happens, in seconds after the test has begun on all ranks
    call: str  # of `world.faults`, such as "kill(2)"

    def __str__(self) -> str:
        return f"{self.call} after {self.after_s:g} s"


def read_fault_plan(subject: str, value: object, way_out: str = _EXAMPLE) -> tuple[PlannedFault, ...]:
    """Return the plan that a user gave as a table from seconds to calls, in the order of the times.

    The text of a UsageError begins with `subject`, and ends with `way_out`.
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


def check(case: Case, spec: Spec) -> None:
    """Check the planned faults of a case."""
    isolation = isolation_named(case.isolation)
    if _planned(case) and (isolation.in_process or case.pool):
        raise UsageError(
            f'{case.name}: faults = {", ".join(map(str, _planned(case)))} with isolation "{isolation.name}".\n'
            "The ranks share one process, or run further tests; a fault needs ranks of its own.\n"
            f'Set isolation="{FORK.name}", with a backend that supports it.'
        )
    plan_of(case)


class PlannedRequest(NamedTuple):
    """A part of a planned fault."""

    planned: PlannedFault
    request: Request


def plan_of(case: Case) -> list[PlannedRequest]:
    """Return the parts of the planned faults of a case; each waits for the one before."""
    plan: list[PlannedRequest] = []
    for planned in _planned(case):
        requests: list[Request] = []
        # No delay is noted: it is no call of a plan.
        faults = Faults(Layout(case.world_size, places_of(case)), requests.append, lambda *_: None)
        try:
            _ask(planned, faults)
        except UsageError as error:
            raise UsageError(f"{case.name}: {error}") from None
        plan += [PlannedRequest(planned, request) for request in requests]
    return plan


def _planned(case: Case) -> tuple[PlannedFault, ...]:
    planned: tuple[PlannedFault, ...] = case.settings.get("faults", ())
    return planned


def _ask(planned: PlannedFault, faults: Faults) -> None:
    """Make the call of a planned fault."""
    try:
        tree = ast.parse(planned.call.strip(), mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id not in _CALLS:
            raise ValueError("no call of a fault")
        values = [ast.literal_eval(value) for value in tree.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
        getattr(faults, tree.func.id)(*values, **named)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"world.faults: planned fault {planned.call!r}.\n"
            f"A plan has calls with plain values, of {', '.join(_CALLS)}.\n"
            'Write "kill(2)", or "wire(loss=0.01, seed=7)", for example.'
        ) from None
