"""The messages about the links between simulated nodes.

    watcher  --- ChangeLinks --->   place, in the fork server  --- ChangeLinks --->   link process
    watcher  <-- LinksChanged ---   place, in the fork server  <-- LinksChanged ---   link process

The link process carries the packets; the place only passes the messages on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dist_testing.core.ground.codec import Family
from dist_testing.nodes.links import Link, LinkRule

# Of messages that no order has caused.
UNASKED = 0

_Number = Annotated[int, range(1 << 31)]


@dataclass(frozen=True, slots=True)
class ChangeLinks:
    """Give links between the nodes of the world a rule. `LinksChanged` answers.

    Attributes:
        number: Of this order, from 1, for the answer.
        links: Which links.
        rule: What they do to packets from now on.
    """

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

    number: _Number
    refusal: str = ""


LINK_ORDERS: Family[ChangeLinks] = Family("order to the link process", 2, (ChangeLinks,))
LINK_ANSWERS: Family[LinksChanged] = Family("answer of the link process", 2, (LinksChanged,))
