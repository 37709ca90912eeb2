"""The place of a world on simulated nodes: the fork server makes it, and each rank enters its node.

From the first fault of the network on, a process carries the packets between the nodes. The fork server starts this
link process and passes orders on to it. It ends when the fork server closes its end of the connection, and dies with
the fork server.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import RankStart, WorldRequest
from dist_testing.core.process.lifetime import die_with_parent, end_child, fork
from dist_testing.core.process.refusal import refusal
from dist_testing.nodes.faults import ADD_ON, LINK_ANSWERS, LINK_ORDERS, LinksChanged
from dist_testing.nodes.namespaces import (
    INTERFACE,
    Nodes,
    enter,
    enter_network,
    make_nodes,
    name_nodes,
    port_name,
    write_hosts,
)
from dist_testing.nodes.netlink import Netlink
from dist_testing.nodes.switch import Switch, open_port

# Names and addresses of the nodes, in the world's folder.
_HOSTS = "hosts"
# Limit for the link process to end by itself. Seconds.
_END_LIMIT_S = 1.0
_DEAD = (
    "world.faults: the process that carries the packets between the nodes has ended.\n"
    "A test has killed it, or the kernel has for lack of memory; now no node reaches another.\n"
    "Look for a test that kills processes which it has not started."
)

_FIRST_FREE_FD = 3
# How often the kernel repeats what a closed connection has sent, without an answer. By default it takes 100 s for that,
# and keeps the network of the node so long.
_ORPHAN_RETRIES = "/proc/sys/net/ipv4/tcp_orphan_retries"


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
        return _written(LinksChanged(text))

    def answers(self) -> Iterator[tuple[str, str]]:
        """Yield the answers that have come, each with the add-on that it is for."""
        if self._links is not None:
            received = wire.receive(self._links[1], LINK_ANSWERS)
            self._has_lost_links = received is None
            yield ADD_ON, _written(received[0] if received else LinksChanged(_DEAD))

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


def start_link_process(nodes: Nodes) -> tuple[int, socket.socket]:
    """Start the process. Return its number, and the connection to it."""
    parent_pid = os.getpid()
    with contextlib.ExitStack() as undo:
        ours, theirs = map(undo.enter_context, socket.socketpair())
        if (pid := fork()) == 0:
            _serve(theirs, nodes, parent_pid)
        theirs.close()
        undo.pop_all()
    return pid, ours


def _serve(control: socket.socket, nodes: Nodes, parent_pid: int) -> NoReturn:
    """Be the link process."""
    code = 1
    try:
        die_with_parent(parent_pid)
        # Garbage collections would copy the pages that this process shares with the fork server.
        gc.disable()
        user = () if nodes.user is None else (nodes.user,)
        # Not the store's socket either, which would go on listening when its rank has died.
        _close_all_but({control.fileno(), nodes.bridge, *nodes.network, *user})
        try:
            switch, patience = _take_over(nodes)
            # The kernel forgets the death signal when a process joins a user namespace.
            die_with_parent(parent_pid)
        except OSError as error:
            _refuse(control, error)
        else:
            switch.run(control.fileno(), lambda: _obey(control, switch))
            _give_up(patience)
        code = 0
    except BaseException:
        # A bug of this library. The fork server tells the runner that the process has ended.
        traceback.print_exc()
    finally:
        os._exit(code)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if (fd := int(name)) >= _FIRST_FREE_FD and fd not in kept:
            # The descriptor of the list itself is closed.
            with contextlib.suppress(OSError):
                os.close(fd)


def _give_up(patience: Sequence[int]) -> None:
    """The world is over: let the kernel forget at once what the ranks have sent, and no node has got."""
    for fd in patience:
        # Without a process in the network, it may be gone already.
        with contextlib.suppress(OSError):
            os.write(fd, b"1")


def _take_over(nodes: Nodes) -> tuple[Switch, list[int]]:
    """Enter the namespace of the bridge, and take its ports. The descriptors are those that `_give_up` writes to."""
    patience = []
    if nodes.user is not None:
        enter([nodes.user])
    for network in nodes.network:
        enter_network(network)
        with Netlink() as on_node:
            # Else a packet here would be many on the link, and share their fate.
            on_node.send_single_packets(INTERFACE)
        # A container may show /proc/sys read-only. Then its networks go later.
        with contextlib.suppress(OSError):
            patience.append(os.open(_ORPHAN_RETRIES, os.O_WRONLY | os.O_CLOEXEC))
    enter_network(nodes.bridge)
    ports = [open_port(port_name(node)) for node in range(len(nodes.network))]
    with Netlink() as on_bridge:
        for node in range(len(nodes.network)):
            on_bridge.remove_port(port_name(node))
    for fd in (nodes.bridge, *nodes.network):
        os.close(fd)
    return Switch(ports), patience


def _obey(control: socket.socket, switch: Switch) -> bool:
    received = wire.receive(control, LINK_ORDERS)
    if received is None:
        return False
    order, _ = received
    switch.set_rule(order.links, order.rule)
    wire.send(control, LINK_ANSWERS, LinksChanged())
    return True


def _refuse(control: socket.socket, error: OSError) -> None:
    """Refuse the orders that come, because the kernel has refused the ports."""
    while wire.receive(control, LINK_ORDERS) is not None:
        text = (
            f"{error}.\n"
            "The process that carries the packets needs packet sockets (CAP_NET_RAW), which the kernel refuses.\n"
            "Allow them: --cap-add=NET_RAW in Docker, for example."
        )
        if error.errno in (errno.EMFILE, errno.ENFILE):
            text = refusal(error)
        wire.send(control, LINK_ANSWERS, LinksChanged(f"world.faults: the network cannot be changed: {text}"))
