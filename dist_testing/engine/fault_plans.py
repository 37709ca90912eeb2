"""Turns the planned faults of a case into the requests that a rank would send for them, and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dist_testing.case import Case
from dist_testing.errors import UsageError
from dist_testing.faults import Faults, SignalAction
from dist_testing.launch.isolation import FORK, Isolation
from dist_testing.layout import Layout
from dist_testing.nodes.links import Link, LinkRule
from dist_testing.process.rank_messages import LinkFault, SignalFault

Request: TypeAlias = SignalFault | LinkFault


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
        self.requests.append(SignalFault(0, action, tuple(ranks)))

    def set_links(self, links: Sequence[Link], rule: LinkRule) -> None:
        """Note a request."""
        self.requests.append(LinkFault(0, tuple(links), rule))


def plan_of(case: Case, isolation: Isolation) -> list[PlannedRequests]:
    """Return the planned faults of a case.

    Raises:
        UsageError: If one of them is not possible in its world.
    """
    if case.faults and (isolation.in_process or case.pool):
        raise UsageError(
            f'{case.name}: faults = {", ".join(map(str, case.faults))} with isolation "{isolation.name}".\n'
            "The ranks share one process, or run further tests; a fault needs ranks of its own.\n"
            f'Set isolation="{FORK.name}", with a backend that supports it.'
        )
    plan = []
    for planned in case.faults:
        notes = _Notes()
        try:
            planned.ask(Faults(Layout(case.world_size, case.nodes), notes, _no_delay))
        except UsageError as error:
            raise UsageError(f"{case.name}: {error}") from None
        plan.append(PlannedRequests(planned.after_s, str(planned), tuple(notes.requests)))
    return plan


def _no_delay(rank: int, barrier: str, seconds: float) -> None:
    """Never called: a plan has no delays, which belong to barriers."""
