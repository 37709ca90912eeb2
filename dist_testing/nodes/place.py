"""The place of a world on simulated nodes: the fork server makes it, and each rank enters its node."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import RankStart, WorldRequest
from dist_testing.core.process.lifetime import end_child
from dist_testing.core.process.refusal import refusal
from dist_testing.nodes.fault_messages import LINK_ANSWERS, LINK_ORDERS, UNASKED, LinksChanged
from dist_testing.nodes.link_process import start_link_process
from dist_testing.nodes.namespaces import enter, make_nodes, name_nodes, write_hosts

# Names and addresses of the nodes, in the world's folder.
_HOSTS = "hosts"
# Limit for the link process to end by itself. Seconds.
_END_LIMIT_S = 1.0
_DEAD = (
    "world.faults: the process that carries the packets between the nodes has ended.\n"
    "A test has killed it, or the kernel has for lack of memory; now no node reaches another.\n"
    "Look for a test that kills processes which it has not started."
)


class NodePlace:
    """The nodes of one world, and the process that carries their packets after the first fault of the network."""

    def __init__(self, request: WorldRequest) -> None:
        """Make the nodes, and the listening socket of the store on the first one."""
        self._layout = request.layout
        write_hosts(Path(request.directory, _HOSTS), self._layout.groups)
        self._nodes = make_nodes(self._layout.groups, request.store_port, 2 * request.size)
        self.fds = self._nodes.fds
        self.store_fd = self._nodes.store
        # The link process, and the connection to it, from the first order on.
        self._links: tuple[int, socket.socket] | None = None
        self._has_lost_links = False
        # The add-on that changes the links.
        self._asker = ""

    @staticmethod
    def enter(start: RankStart) -> None:
        """Move this process, which has one thread, into the node of its rank."""
        enter(start.place_fds)
        name_nodes(Path(start.request.directory, _HOSTS))

    def fds_of(self, rank: int) -> tuple[int, ...]:
        """Return the descriptors that `enter` needs for a rank."""
        return self._nodes.of(self._layout.group_of(rank))

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are answers; -1 for none."""
        return -1 if self._links is None or self._has_lost_links else self._links[1].fileno()

    def order(self, add_on: str, payload: str) -> str:
        """Change links. Return the answer if it is known at once; "" if it comes later."""
        self._asker = add_on
        order = LINK_ORDERS.from_wire(payload)
        try:
            self._links = self._links or start_link_process(self._nodes)
            wire.send(self._links[1], LINK_ORDERS, order)
        except (BrokenPipeError, ConnectionResetError):
            text = _DEAD
        except OSError as error:
            text = f"world.faults: the network cannot be changed: {refusal(error)}"
        else:
            return ""
        return _written(LinksChanged(order.number, text))

    def answers(self) -> Iterator[tuple[str, str]]:
        """Yield the answers that have come, each with the add-on that it is for."""
        if self._links is not None:
            received = wire.receive(self._links[1], LINK_ANSWERS)
            self._has_lost_links = received is None
            yield self._asker, _written(received[0] if received else LinksChanged(UNASKED, _DEAD))

    def close(self) -> None:
        """End the process; the caller closes the descriptors."""
        if self._links is not None:
            pid, control = self._links
            control.close()
            # Other code of this process may have waited for it already.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                end_child(os.pidfd_open(pid), _END_LIMIT_S)


def _written(answer: LinksChanged) -> str:
    return LINK_ANSWERS.to_wire(answer).decode()
