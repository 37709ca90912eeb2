"""The place of a world on simulated nodes: the fork server makes it, and each rank enters its node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dist_testing.core.process.launcher_messages import RankStart, WorldRequest
from dist_testing.core.process.refusal import refusal
from dist_testing.nodes.fault_messages import LINK_ANSWERS, LINK_ORDERS, UNASKED, LinksChanged
from dist_testing.nodes.link_process import LinkProcess
from dist_testing.nodes.namespaces import enter, make_nodes, name_nodes, write_hosts

# Names and addresses of the nodes, in the world's folder.
_HOSTS = "hosts"


class NodePlace:
    """The nodes of one world, and the process that carries their packets after the first fault of the network."""

    def __init__(self, request: WorldRequest) -> None:
        """Make the nodes, and the listening socket of the store on the first one.

        Raises:
            OSError: If the kernel refuses.
        """
        self._layout = request.layout
        write_hosts(Path(request.directory, _HOSTS), self._layout.groups)
        self._nodes = make_nodes(self._layout.groups, request.store_port, 2 * request.size)
        self._links: LinkProcess | None = None
        self._has_lost_links = False
        # The add-on that changes the links.
        self._asker = ""

    @staticmethod
    def enter(start: RankStart) -> None:
        """Move this process, which has one thread, into the node of its rank.

        Raises:
            OSError: If the kernel refuses.
        """
        enter(start.place_fds)
        name_nodes(Path(start.request.directory, _HOSTS))

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that hold the nodes."""
        return self._nodes.fds

    @property
    def store_fd(self) -> int | None:
        """The listening socket of the store."""
        return self._nodes.store

    def fds_of(self, rank: int) -> tuple[int, ...]:
        """Return the descriptors that `enter` needs for a rank."""
        return self._nodes.of(self._layout.group_of(rank))

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are answers; -1 for none."""
        return -1 if self._links is None or self._has_lost_links else self._links.fileno()

    def order(self, add_on: str, payload: str) -> str:
        """Change links. Return the answer if it is known at once; "" if it comes later."""
        self._asker = add_on
        order = LINK_ORDERS.from_wire(payload)
        try:
            self._links = self._links or LinkProcess(self._nodes)
            text = self._links.change(order)
        except OSError as error:
            text = f"world.faults: the network cannot be changed: {refusal(error)}"
        return _written(LinksChanged(order.number, text)) if text else ""

    def answers(self) -> Iterator[tuple[str, str]]:
        """Yield the answers that have come, each with the add-on that it is for."""
        if self._links is not None and (answer := self._links.answer()) is not None:
            self._has_lost_links = answer.number == UNASKED
            yield self._asker, _written(answer)

    def close(self) -> None:
        """End the process; the caller closes the descriptors."""
        if self._links is not None:
            self._links.end()


def _written(answer: LinksChanged) -> str:
    return LINK_ANSWERS.to_wire(answer).decode()
