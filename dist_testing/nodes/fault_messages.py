"""The messages about faults on purpose, and about the links between simulated nodes.

    rank  --- SignalFault, LinkFault --->   watcher
    rank  <-- a refusal, or "" ----------   watcher

    watcher  --- LinkFault ----->   place, in the fork server  --- LinkFault ----->   link process
    watcher  <-- LinksChanged ---   place, in the fork server  <-- LinksChanged ---   link process

The watcher does not trust a request: a rank runs test code. The link process carries the packets; the place only passes
the messages on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.nodes.links import LinkRule

# "power off" kills the ranks of a node, of which some may have ended before.
SignalAction: TypeAlias = Literal["kill", "stop", "cont", "power off"]
# Of messages that no order has caused.
UNASKED = 0

_Number = Annotated[int, range(1 << 31)]


@dataclass(frozen=True, slots=True)
class SignalFault:
    """Send a signal to ranks of this world, because the test wants the fault."""

    action: SignalAction  # "kill" and "power off" are SIGKILL, "stop" is SIGSTOP, "cont" is SIGCONT
    ranks: tuple[Annotated[int, range(MAX_WORLD_SIZE)], ...]


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Give links between the simulated nodes of this world a rule."""

    links: tuple[LinkEnds, ...]
    rule: LinkRule  # what they do to packets from now on
    number: _Number = 0  # the watcher's number for it, from 1, which `LinksChanged` repeats


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """The links between nodes have their rule, or cannot get it."""

    number: _Number  # that of the `LinkFault`; `UNASKED` if the links have failed without one
    refusal: str = ""  # what is wrong, the cause and the way out; "" if they have it


Request: TypeAlias = SignalFault | LinkFault
FAULT_REQUESTS: Family[Request] = Family("request for a fault", 2, (SignalFault, LinkFault))
LINK_ORDERS: Family[LinkFault] = Family("order to the link process", 4, (LinkFault,))
LINK_ANSWERS: Family[LinksChanged] = Family("answer of the link process", 2, (LinksChanged,))
