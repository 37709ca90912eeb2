"""Faults on purpose: `world.faults`, by which a test ends and stops ranks, delays them, and breaks the network.

A rank asks the runner; the runner checks the request, because a rank runs test code, carries it out and answers. A call
returns when the fault has happened: a rank that `kill` names is dead, and the next packet meets the new network.

    rank  --- SignalFault, LinkFault --->   watcher
    rank  <-- a refusal, or "" ----------   watcher

    watcher  --- LinkFault ----->   place, in the fork server  --- LinkFault ----->   link process
    watcher  <-- LinksChanged ---   place, in the fork server  <-- LinksChanged ---   link process

The link process carries the packets between the nodes; the place only passes the messages on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.core.ground.world import AsksRunner, NoRunner, World
from dist_testing.nodes.links import (
    CUT,
    MAX_DELAY_MS,
    MAX_RATE_KBIT,
    MAX_SEED,
    MILLION,
    WHOLE,
    LinkRule,
    links_between,
)

# The add-on that carries faults out.
ADD_ON = "faults"
# Names a node, or several.
Nodes: TypeAlias = int | Iterable[int]

# Longest delay of a rank at a barrier. Seconds.
MAX_BARRIER_DELAY_S = 3600.0
# True is none, although it is an int.
_NUMBERS = (int, float)

# "power off" kills the ranks of a node, of which some may have ended before.
SignalAction: TypeAlias = Literal["kill", "stop", "cont", "power off"]


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


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """The oldest order has been carried out; or no order can be, now and later."""

    refusal: str = ""  # what is wrong, the cause and the way out; "" if the links have their rule


Request: TypeAlias = SignalFault | LinkFault
FAULT_REQUESTS: Family[Request] = Family("request for a fault", 3, (SignalFault, LinkFault))
LINK_ORDERS: Family[LinkFault] = Family("order to the link process", 5, (LinkFault,))
LINK_ANSWERS: Family[LinksChanged] = Family("answer of the link process", 3, (LinksChanged,))


class Faults:
    """The faults that a test can cause in its own world; a test gets it as `world.faults`.

    State in the marker how each rank ends that a fault ends: `expected_exits={2: -9}` for a rank that is killed, and
    `{2: -19}` for one that is still stopped when the others have ended. Every other end fails the case.

    Each call raises a UsageError if the world has no such rank, node or link, if a rank has ended, or if a value is not
    possible.
    """

    def __init__(
        self, layout: Layout, ask: Callable[[Request], None], delay: Callable[[int, str, float], None]
    ) -> None:
        """Make the faults of one rank.

        `ask` brings a request to the runner, and waits until it has had its effect. `delay` notes a delay of a rank at
        a barrier, in seconds.
        """
        self._layout = layout
        self._ask = ask
        self._delay = delay

    def kill(self, rank: int) -> None:
        """Kill a rank by SIGKILL, and wait until it is dead. A rank that kills itself does not return."""
        self._ask(SignalFault("kill", (self._checked_rank("kill", rank),)))

    def stop(self, rank: int) -> None:
        """Stop a rank by SIGSTOP, and wait until it stands still. A rank that stops itself returns after `cont`.

        Its connections stay open, and the kernel still takes in what others send to it.
        """
        self._ask(SignalFault("stop", (self._checked_rank("stop", rank),)))

    def cont(self, rank: int) -> None:
        """Let a stopped rank go on, by SIGCONT."""
        self._ask(SignalFault("cont", (self._checked_rank("cont", rank),)))

    def delay(self, rank: int, barrier: str, seconds: float) -> None:
        """Delay a rank: when it next comes to `world.barrier(barrier)`, it waits so long before it takes part."""
        self._checked_rank("delay", rank)
        if not isinstance(barrier, str) or not barrier:
            _refuse(
                f"delay at barrier {barrier!r}",
                "A delay belongs to a barrier with a name, because a test can have several.",
                'Write world.barrier("step") in the test, and delay(1, "step", 0.5).',
            )
        if type(seconds) not in _NUMBERS or not 0 <= seconds <= MAX_BARRIER_DELAY_S:
            _refuse(
                f"delay of {seconds!r} seconds",
                f"It is a number of seconds from 0 to {MAX_BARRIER_DELAY_S:.0f}.",
                "Write 0.5, for example.",
            )
        self._delay(rank, barrier, float(seconds))

    def node_down(self, node: int) -> None:
        """Switch a node off: cut its links, then kill its ranks. So no peer learns of it by a closed connection."""
        (down,) = self._checked_nodes("node_down", node)
        others = self._others([down])
        self._ask(LinkFault(links_between([down], others, both=True), CUT))
        ranks = tuple(rank for rank in range(self._layout.size) if self._layout.group_of(rank) == down)
        self._ask(SignalFault("power off", ranks))

    def partition(self, nodes: Nodes, others: Nodes | None = None, *, one_way: bool = False) -> None:
        """Cut the links between nodes. Connections stay open; their packets are lost.

        Args:
            nodes: A node, or several.
            others: Those that they no longer reach; None for all other nodes.
            one_way: Whether to lose only the packets from `nodes` to `others`, and not those back.
        """
        links = self._links("partition", nodes, others, both=not one_way)
        self._ask(LinkFault(links, CUT))

    def heal(self) -> None:
        """Make all links whole again. TCP repeats lost packets after a while, which doubles with each repetition."""
        every = self._checked_nodes("heal", range(self._layout.groups))
        self._ask(LinkFault(links_between(every, every, both=False), WHOLE))

    def wire(
        self,
        nodes: Nodes | None = None,
        others: Nodes | None = None,
        *,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss: float = 0,
        reorder: float = 0,
        rate_kbit: int = 0,
        seed: int = 0,
        one_way: bool = False,
    ) -> None:
        """Replace the links between nodes by worse ones. The fate of a packet follows from seed, link and its number.

        Args:
            nodes: A node, or several; None for all.
            others: The other end of the links; None for all other nodes.
            delay_ms: Time that each packet takes, in milliseconds.
            jitter_ms: A packet takes up to so much longer, in milliseconds; so packets may overtake each other.
            loss: Share of the packets that are lost, from 0 to 1.
            reorder: Share of the packets that one to three later packets overtake, from 0 to 1.
            rate_kbit: Speed of each link, in thousands of bits per second; 0 for no limit.
            seed: Chooses the packets that are lost, late and reordered.
            one_way: Whether to change only the links from `nodes` to `others`.
        """
        for name, value, kinds, largest in (
            ("delay_ms", delay_ms, _NUMBERS, MAX_DELAY_MS),
            ("jitter_ms", jitter_ms, _NUMBERS, MAX_DELAY_MS),
            ("loss", loss, _NUMBERS, 1),
            ("reorder", reorder, _NUMBERS, 1),
            ("rate_kbit", rate_kbit, (int,), MAX_RATE_KBIT),
            ("seed", seed, (int,), MAX_SEED - 1),
        ):
            if type(value) not in kinds or not 0 <= value <= largest:
                _refuse(
                    f"wire with {name} = {value!r}",
                    f"It is a number from 0 to {largest}.",
                    "Correct it, or leave it out.",
                )
        rule = LinkRule(
            delay_us=round(1000 * delay_ms),
            jitter_us=round(1000 * jitter_ms),
            loss_ppm=round(MILLION * loss),
            reorder_ppm=round(MILLION * reorder),
            rate_kbit=rate_kbit,
            seed=seed,
        )
        if nodes is None:
            if others is not None or one_way:
                _refuse(
                    f"wire with others = {others!r} and one_way = {one_way!r}, but without nodes",
                    "Both tell which links of `nodes` change.",
                    "Name the nodes, as in wire(0, 1, one_way=True), or leave out others and one_way for all links.",
                )
            every = self._checked_nodes("wire", range(self._layout.groups))
            links = links_between(every, every, both=False)
        else:
            links = self._links("wire", nodes, others, both=not one_way)
        self._ask(LinkFault(links, rule))

    def _links(self, call: str, nodes: Nodes, others: Nodes | None, *, both: bool) -> tuple[LinkEnds, ...]:
        near = self._checked_nodes(call, nodes)
        far = self._others(near) if others is None else self._checked_nodes(call, others)
        if not far or set(near) & set(far):
            _refuse(
                f"{call} between nodes {list(near)} and {list(far)}",
                "A link has two ends on different nodes.",
                f"Name different nodes of the {self._layout.groups}: partition(0, 1), for example.",
            )
        return links_between(near, far, both=both)

    def _others(self, nodes: Sequence[int]) -> list[int]:
        return [node for node in range(self._layout.groups) if node not in nodes]

    def _checked_rank(self, call: str, rank: object) -> int:
        if type(rank) is not int or not 0 <= rank < self._layout.size:
            _refuse(
                f"{call} of rank {rank!r} in a world of {self._layout.size} ranks",
                "A test can harm only the ranks of its own world.",
                f"Name a rank from 0 to {self._layout.size - 1}.",
            )
        return rank

    def _checked_nodes(self, call: str, nodes: object) -> tuple[int, ...]:
        count = self._layout.groups
        if count == 1:
            _refuse(
                f"{call} in a world without simulated nodes",
                "All ranks are on this machine and share its network, which a test must not break.",
                "Spread the ranks over nodes: @pytest.mark.distributed(world_size=4, nodes=2), or nodes = 2 in BUILD.",
            )
        given = list(nodes) if isinstance(nodes, Iterable) else [nodes]
        # True is no node, although it is an int.
        found = [node for node in given if isinstance(node, int) and type(node) is int and 0 <= node < count]
        if not found or len(found) < len(given):
            _refuse(
                f"{call} of node {nodes!r} in a world of {count} nodes",
                "The world has no such node.",
                f"Name nodes from 0 to {count - 1}.",
            )
        return tuple(dict.fromkeys(found))


def ask(runner: AsksRunner, request: Request) -> None:
    """Bring a request to the runner, and wait until the fault has happened; a UsageError says why it has refused."""
    if refusal := runner.ask(ADD_ON, FAULT_REQUESTS.to_wire(request).decode(), "world.faults"):
        raise UsageError(refusal)


def faults_of(world: World, runner: AsksRunner, layout: Layout) -> Faults:
    """Return `world.faults` of a rank."""
    if isinstance(runner, NoRunner):
        raise runner.refusal(f"world.faults on rank {world.rank} of {world.size}")

    def note_delay(rank: int, barrier: str, seconds: float) -> None:
        world.store.set(_delay_key(rank, barrier), str(seconds))

    return Faults(layout, functools.partial(ask, runner), note_delay)


def be_late(world: World, barrier: str) -> None:
    """Wait before a barrier, if a rank has asked for a delay of this one."""
    key = _delay_key(world.rank, barrier)
    if world.store.check([key]):
        seconds = float(world.store.get(key))
        world.store.delete_key(key)
        time.sleep(seconds)


def _delay_key(rank: int, barrier: str) -> str:
    return f"dist_testing/delay/{rank}/{barrier}"


def refused(what: str, cause: str, way_out: str) -> str:
    """Return the text of a refusal."""
    return f"world.faults: {what}.\n{cause}\n{way_out}"


def _refuse(what: str, cause: str, way_out: str) -> NoReturn:
    raise UsageError(refused(what, cause, way_out))
