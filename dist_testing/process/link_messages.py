"""The messages about the links between simulated nodes.

    runner  --- ChangeLinks --->   fork server  --- ChangeLinks --->   link process
    runner  <-- LinksChanged ---   fork server  <-- LinksChanged ---   link process

The link process carries the packets; the fork server only passes the messages on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dist_testing.codec import Family
from dist_testing.nodes.links import Link, LinkRule

# Of messages that no order has caused.
UNASKED = 0

_Number = Annotated[int, range(1 << 31)]


@dataclass(frozen=True, slots=True)
class ChangeLinks:
    """Give links between the nodes of the running world a rule. `LinksChanged` answers.

    Attributes:
        world: Its number.
        number: Of this order, from 1, for the answer.
        links: Which links.
        rule: What they do to packets from now on.
    """

    world: _Number
    number: _Number
    links: tuple[Link, ...]
    rule: LinkRule


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """The links between nodes have their rule, or cannot get it.

    Attributes:
        number: Of the order; `UNASKED` if the links have failed without one.
        refusal: What is wrong, the cause and the way out; "" if they have it.
    """

    world: _Number
    number: _Number
    refusal: str = ""


LINK_ORDERS: Family[ChangeLinks] = Family("order to the link process", 1, (ChangeLinks,))
LINK_ANSWERS: Family[LinksChanged] = Family("answer of the link process", 1, (LinksChanged,))
