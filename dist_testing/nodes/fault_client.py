"""`world.faults` of a rank: its requests go to the watcher of the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.world import AsksRunner
from dist_testing.nodes.fault_messages import FAULT_ANSWERS, FAULT_REQUESTS, LinkFault, Request, SignalFault
from dist_testing.nodes.faults import Faults, SignalAction
from dist_testing.nodes.links import Link, LinkRule

ADD_ON = "faults"


class FaultClient:
    """Brings requests to the runner and waits for the answers."""

    def __init__(self, runner: AsksRunner) -> None:
        self._runner = runner

    def signal(self, action: SignalAction, ranks: Sequence[int]) -> None:
        """Send a signal to ranks, and wait until it has had its effect.

        Raises:
            UsageError: If the runner refuses.
        """
        self._ask(SignalFault(action, tuple(ranks)))

    def set_links(self, links: Sequence[Link], rule: LinkRule) -> None:
        """Give links between nodes a rule, and wait until it holds.

        Raises:
            UsageError: If the runner refuses.
        """
        self._ask(LinkFault(tuple(links), rule))

    def _ask(self, request: Request) -> None:
        answer = self._runner.ask(ADD_ON, FAULT_REQUESTS.to_wire(request).decode(), "world.faults")
        if refusal := FAULT_ANSWERS.from_wire(answer).refusal:
            raise UsageError(refusal)


def faults_of(runner: AsksRunner, layout: Layout, delay: Callable[[int, str, float], None]) -> Faults:
    """Return `world.faults` of a rank. `delay` notes a delay of a rank at a barrier, in seconds."""
    return Faults(layout, FaultClient(runner), delay)
