"""The process that carries packets between the nodes of a world after its first fault of the network.

The fork server starts it and passes orders on to it. It ends when the fork server closes its end of the connection, and
dies with the fork server.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import traceback
from collections.abc import Sequence
from typing import NoReturn

from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import die_with_parent, fork
from dist_testing.nodes.fault_messages import LINK_ANSWERS, LINK_ORDERS, LinksChanged
from dist_testing.nodes.namespaces import INTERFACE, Nodes, enter, enter_network, port_name
from dist_testing.nodes.netlink import Netlink
from dist_testing.nodes.switch import Switch, open_port

_FIRST_FREE_FD = 3
# How often the kernel repeats what a closed connection has sent, without an answer. By default it takes 100 s for that,
# and keeps the network of the node so long.
_ORPHAN_RETRIES = "/proc/sys/net/ipv4/tcp_orphan_retries"


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
    wire.send(control, LINK_ANSWERS, LinksChanged(order.number))
    return True


def _refuse(control: socket.socket, error: OSError) -> None:
    """Refuse the orders that come, because the kernel has refused the ports."""
    while (received := wire.receive(control, LINK_ORDERS)) is not None:
        text = (
            f"world.faults: the network cannot be changed: {error}.\n"
            "The process that carries the packets needs packet sockets (CAP_NET_RAW), which the kernel refuses.\n"
            "Allow them: --cap-add=NET_RAW in Docker, for example."
        )
        wire.send(control, LINK_ANSWERS, LinksChanged(received[0].number, text))
