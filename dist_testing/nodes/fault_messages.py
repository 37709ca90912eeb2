"""The messages about faults on purpose, and about the links between simulated nodes.

    rank  --- SignalFault, LinkFault --->   watcher
    rank  <-- FaultDone -----------------   watcher

    watcher  --- ChangeLinks --->   place, in the fork server  --- ChangeLinks --->   link process
    watcher  <-- LinksChanged ---   place, in the fork server  <-- LinksChanged ---   link process

The watcher does not trust a request: a rank runs test code. The link process carries the packets; the place only passes
the messages on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.nodes.links import Link, LinkRule

# "power off" kills the ranks of a node, of which some may have ended before.
SignalAction: TypeAlias = Literal["kill", "stop", "cont", "power off"]
# Of messages that no order has caused.
UNASKED = 0

_Number = Annotated[int, range(1 << 31)]


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


@dataclass(frozen=True, slots=True)
class ChangeLinks:
    """Carry out a fault of links. `LinksChanged` answers.

    Attributes:
        number: Of this order, from 1, for the answer.
        fault: The fault.
    """

    number: _Number
    fault: LinkFault


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """The links between nodes have their rule, or cannot get it.

    Attributes:
        number: Of the order; `UNASKED` if the links have failed without one.
        refusal: What is wrong, the cause and the way out; "" if they have it.
    """

    number: _Number
    refusal: str = ""


Request: TypeAlias = SignalFault | LinkFault
FAULT_REQUESTS: Family[Request] = Family("request for a fault", 1, (SignalFault, LinkFault))
FAULT_ANSWERS: Family[FaultDone] = Family("answer to a request for a fault", 1, (FaultDone,))
LINK_ORDERS: Family[ChangeLinks] = Family("order to the link process", 3, (ChangeLinks,))
LINK_ANSWERS: Family[LinksChanged] = Family("answer of the link process", 2, (LinksChanged,))
