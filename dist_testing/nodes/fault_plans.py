"""Turns the planned faults of a case into the requests that a rank would send for them, and checks them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, isolation_named
from dist_testing.nodes.fault_messages import LinkFault, Request, SignalFault
from dist_testing.nodes.faults import Faults, SignalAction
from dist_testing.nodes.links import Link, LinkRule
from dist_testing.nodes.planned import PlannedFault

# The calls of `world.faults` that a plan can have. A delay belongs to a barrier of the test.
_CALLS = ("kill", "stop", "cont", "node_down", "partition", "heal", "wire")


@dataclass(frozen=True, slots=True)
class PlannedRequests:
    """A planned fault.

    Attributes:
        after_s: When it happens, in seconds after the test has begun on all ranks.
        text: The fault in words.
        requests: Its parts, each of which waits for the one before.
    """

    after_s: float
    text: str
    requests: tuple[Request, ...]


class _Notes:
    """Takes the place of the connection to the runner, and notes the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def signal(self, action: SignalAction, ranks: Sequence[int]) -> None:
        """Note a request."""
        self.requests.append(SignalFault(action, tuple(ranks)))

    def set_links(self, links: Sequence[Link], rule: LinkRule) -> None:
        """Note a request."""
        self.requests.append(LinkFault(tuple(links), rule))


def check(case: Case, spec: Spec) -> None:
    """Check the planned faults of a case.

    Raises:
        UsageError: If one of them is not possible in its world.
    """
    del spec
    isolation = isolation_named(case.isolation)
    if _planned(case) and (isolation.in_process or case.pool):
        raise UsageError(
            f'{case.name}: faults = {", ".join(map(str, _planned(case)))} with isolation "{isolation.name}".\n'
            "The ranks share one process, or run further tests; a fault needs ranks of its own.\n"
            f'Set isolation="{FORK.name}", with a backend that supports it.'
        )
    plan_of(case)


def plan_of(case: Case) -> list[PlannedRequests]:
    """Return the planned faults of a case.

    Raises:
        UsageError: If one of them is not possible in its world.
    """
    plan = []
    for planned in _planned(case):
        notes = _Notes()
        try:
            _ask(planned, Faults(Layout(case.world_size, case.nodes), notes, _no_delay))
        except UsageError as error:
            raise UsageError(f"{case.name}: {error}") from None
        plan.append(PlannedRequests(planned.after_s, str(planned), tuple(notes.requests)))
    return plan


def _planned(case: Case) -> tuple[PlannedFault, ...]:
    planned: tuple[PlannedFault, ...] = case.settings.get("faults", ())
    return planned


def _no_delay(rank: int, barrier: str, seconds: float) -> None:
    """Never called: a plan has no delays, which belong to barriers."""


def _ask(planned: PlannedFault, faults: Faults) -> None:
    """Make the call of a planned fault.

    Raises:
        UsageError: If it is none of `world.faults`, or if that refuses it.
    """
    try:
        tree = ast.parse(planned.call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        _refuse(planned)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id not in _CALLS:
        _refuse(planned)
    try:
        values = [ast.literal_eval(value) for value in tree.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
        getattr(faults, tree.func.id)(*values, **named)
    except (ValueError, TypeError, RecursionError, MemoryError):
        # Not a plain value, or not the arguments of the call.
        _refuse(planned)


def _refuse(planned: PlannedFault) -> NoReturn:
    raise UsageError(
        f"world.faults: planned fault {planned.call!r}.\n"
        f"A plan has calls with plain values, of {', '.join(_CALLS)}.\n"
        'Write "kill(2)", or "wire(loss=0.01, seed=7)", for example.'
    )
