r"""A switch in user space, which takes the place of the kernel's bridge when links between nodes are to be broken.

    node 0            node 1            ...
    +----------+      +----------+
    |   eth0   |      |   eth0   |
    +----|-----+      +----|-----+
         |                 |
    +----|-----------------|-----+
    |  port0             port1   |      packet sockets in the namespace of the bridge; each packet goes through the
    |      \   LinkQueue  /      |      queue of its link, which loses it, or says when it arrives
    +----------------------------+

It needs neither a module of the kernel for traffic control nor a TUN device, so it works as an ordinary user, too.
"""

from __future__ import annotations

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable, Sequence

from dist_testing.core.ground.record import LinkEnds
from dist_testing.nodes.links import LinkQueue, LinkRule, links_between
from dist_testing.nodes.namespaces import node_address

# <linux/if_packet.h>, <linux/if_ether.h>
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ETH_P_ALL = 3
_ARP, _IPV4 = b"\x08\x06", b"\x08\x00"
# A header of <linux/virtio_net.h> precedes each packet: what the kernel still has to do, such as the checksum.
_HEADER_BYTES = 10
# Offsets in a packet after this header: its type, and the address of the node that it is for.
_TYPE = slice(_HEADER_BYTES + 12, _HEADER_BYTES + 14)
_IPV4_TARGET = slice(_HEADER_BYTES + 30, _HEADER_BYTES + 34)
_ARP_TARGET = slice(_HEADER_BYTES + 38, _HEADER_BYTES + 42)
_LARGEST_BYTES = 1 << 17
# Packets of one port until the others have their turn.
_BATCH = 64
_SOCKET_BUFFER_BYTES = 8 * 1024 * 1024


def open_port(name: str) -> socket.socket:
    """Return a socket that gets all packets that arrive at an interface, and sends by it."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    # The kernel grants what its limits allow.
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    port.bind((name, _ETH_P_ALL))
    return port


class Switch:
    """Carries packets between ports, each by the rule of its link."""

    def __init__(self, ports: Sequence[socket.socket]) -> None:
        """Make the switch. `ports` are those of `open_port`, by node."""
        self._ports = ports
        nodes = range(len(ports))
        self._by_address = {socket.inet_aton(node_address(node)): [node] for node in nodes}
        self._links = {ends: LinkQueue(ends) for ends in links_between(nodes, nodes, both=False)}
        # Packets on their way: when each arrives, its place in the order, the node, the packet.
        self._arriving: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._poller = select.epoll()
        for port in ports:
            self._poller.register(port, select.EPOLLIN)
        self._nodes = {port.fileno(): node for node, port in enumerate(ports)}

    def set_rule(self, links: Sequence[LinkEnds], rule: LinkRule) -> None:
        """Give links a rule, which holds for the next packet that arrives at the switch."""
        for link in links:
            self._links[link].set_rule(rule)

    def run(self, control: int, hear: Callable[[], bool]) -> None:
        """Carry packets, and call `hear` whenever the descriptor `control` is readable, until it returns False."""
        self._poller.register(control, select.EPOLLIN)
        while True:
            for fd, _ in self._poller.poll(self._pause_s()):
                if fd != control:
                    self._receive(self._nodes[fd])
                elif not hear():
                    return
            self._deliver()

    def _pause_s(self) -> float:
        times = [late_s for link in self._links.values() if (late_s := link.next_s) is not None]
        times += [self._arriving[0][0]] if self._arriving else []
        # Negative for no limit.
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def _receive(self, source: int) -> None:
        port = self._ports[source]
        for _ in range(_BATCH):
            try:
                packet = port.recv(_LARGEST_BYTES)
            except OSError:
                # It has no packet; or a test has removed its node's interface, and it will never have one.
                return
            now_s = time.monotonic()
            for target in self._targets(packet, source):
                link = self._links[LinkEnds(source, target)]
                if packet[_TYPE] == _IPV4:
                    self._send(target, link.send(packet, now_s))
                elif not link.rule.is_cut:
                    # A question for an address: it has no number, because the kernel asks when it likes.
                    self._send(target, [(now_s, packet)])

    def _targets(self, packet: bytes, source: int) -> list[int]:
        """The nodes that a packet is for. Those of other protocols than the nodes' own reach none."""
        kind = packet[_TYPE]
        if kind not in (_IPV4, _ARP):
            return []
        address = packet[_IPV4_TARGET if kind == _IPV4 else _ARP_TARGET]
        # Other addresses are those of several nodes.
        nodes = self._by_address.get(address) or range(len(self._ports))
        return [node for node in nodes if node != source]

    def _send(self, target: int, arriving: Sequence[tuple[float, bytes]]) -> None:
        for arrives_s, packet in arriving:
            heapq.heappush(self._arriving, (arrives_s, next(self._order), target, packet))

    def _deliver(self) -> None:
        now_s = time.monotonic()
        for (_, target), link in self._links.items():
            self._send(target, link.overdue(now_s))
        while self._arriving and self._arriving[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._arriving)
            try:
                self._ports[target].send(packet)
            except OSError:
                # The kernel has no room, or takes no packet of this kind. As on a real link, it is lost.
                continue
