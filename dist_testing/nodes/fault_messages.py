"""The messages about faults on purpose, between a rank and the watcher of its world.

    rank  --- SignalFault, LinkFault --->   watcher
    rank  <-- FaultDone -----------------   watcher

The watcher does not trust a request: a rank runs test code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.nodes.faults import SignalAction
from dist_testing.nodes.links import Link, LinkRule


@dataclass(frozen=True, slots=True)
class SignalFault:
    """Send a signal to ranks of this world, because the test wants the fault.

    Attributes:
        action: Which signal: "kill" and "power off" are SIGKILL, "stop" is SIGSTOP, "cont" is SIGCONT.
        ranks: Which ranks.
    """

    action: SignalAction
    ranks: tuple[Annotated[int, range(MAX_WORLD_SIZE)], ...]


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Give links between the simulated nodes of this world a rule.

    Attributes:
        links: Which links.
        rule: What they do to packets from now on.
    """

    links: tuple[Link, ...]
    rule: LinkRule


@dataclass(frozen=True, slots=True)
class FaultDone:
    """The fault that the rank has asked for has happened, or the runner refuses it.

    Attributes:
        refusal: What is wrong, the cause and the way out; "" if the fault has happened.
    """

    refusal: str = ""


Request: TypeAlias = SignalFault | LinkFault
FAULT_REQUESTS: Family[Request] = Family("request for a fault", 1, (SignalFault, LinkFault))
FAULT_ANSWERS: Family[FaultDone] = Family("answer to a request for a fault", 1, (FaultDone,))
