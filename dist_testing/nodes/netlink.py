"""The part of Linux's rtnetlink that makes virtual networks: bridges, pairs of connected interfaces, addresses.

The kernel's interface is used directly, so neither the program `ip` nor another package is needed. Formats and numbers
are those of <linux/netlink.h>, <linux/rtnetlink.h> and <linux/if_link.h>.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

# A message: length, type, flags, number, port. Its answer begins with an error number, which is 0 or negative.
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
# An attribute: its length with this header, type.
_ATTRIBUTE = struct.Struct("=HH")
# Family, type, index, flags, mask of the flags to change.
_LINK = struct.Struct("=BxHiII")
# Family, length of the network part in bits, flags, scope, index of the interface.
_ADDRESS = struct.Struct("=BBBBI")

_NETLINK_ROUTE = 0
_NLMSG_ERROR = 2
_RTM_NEWLINK, _RTM_NEWADDR = 16, 20
_REQUEST, _ACK, _EXCL, _CREATE = 1, 4, 0x200, 0x400
_IFF_UP = 1

_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_NET_NS_FD = 3, 10, 18, 26, 28
_IFLA_GSO_MAX_SEGS = 40
_IFLA_INFO_KIND, _IFLA_INFO_DATA = 1, 2
_VETH_INFO_PEER = 1
_IFLA_INET6_ADDR_GEN_MODE, _GENERATE_NONE = 8, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class Netlink:
    """A connection to the network part of the kernel, for the network namespace in which it is made.

    Every method raises `OSError` if the kernel refuses.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._number = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def add_bridge(self, name: str) -> None:
        """Make a bridge, which forwards frames between its ports, and switch it on."""
        self._change(name, _info("bridge"), flags=_CREATE | _EXCL)
        self.switch_on(name)

    def add_pair(self, name: str, peer: str, peer_namespace: int) -> None:
        """Make two connected interfaces: this one, which is switched on, and one in another network namespace, off."""
        other = _link(peer) + _number(_IFLA_NET_NS_FD, peer_namespace)
        data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, other))
        self._change(name, _info("veth", data), flags=_CREATE | _EXCL)
        self.switch_on(name)

    def add_port(self, name: str, bridge: str) -> None:
        """Make an interface a port of a bridge, and switch it on."""
        self._change(name, _number(_IFLA_MASTER, _index(bridge)))
        self.switch_on(name)

    def remove_port(self, name: str) -> None:
        """Take an interface out of its bridge; it stays on, and the bridge no longer gets what arrives there."""
        self._change(name, _number(_IFLA_MASTER, 0))

    def send_single_packets(self, name: str) -> None:
        """Let the kernel cut what TCP sends by an interface into packets before it, not after it."""
        self._change(name, _number(_IFLA_GSO_MAX_SEGS, 1))

    def switch_on(self, name: str) -> None:
        """Switch an interface on. It gets no IPv6 address, for which the kernel would need a second."""
        if os.path.exists("/proc/net/if_inet6"):
            mode = _attribute(_IFLA_INET6_ADDR_GEN_MODE, bytes([_GENERATE_NONE]))
            self._change(name, _attribute(_IFLA_AF_SPEC, _attribute(socket.AF_INET6, mode)))
        self._ask(_RTM_NEWLINK, 0, _link(name, _IFF_UP))

    def add_address(self, name: str, address: str, network_bits: int) -> None:
        """Give an interface an IPv4 address in a network whose part of the address has so many bits."""
        packed = socket.inet_pton(socket.AF_INET, address)
        head = _ADDRESS.pack(socket.AF_INET, network_bits, 0, 0, _index(name))
        body = head + _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._ask(_RTM_NEWADDR, _CREATE | _EXCL, body)

    def _change(self, name: str, attributes: bytes, *, flags: int = 0) -> None:
        self._ask(_RTM_NEWLINK, flags, _link(name) + attributes)

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        self._number += 1
        head = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, self._number, 0)
        self._socket.send(head + body)
        answer = self._socket.recv(1 << 16)
        _, kind, _, number, _ = _HEADER.unpack_from(answer)
        if (kind, number) != (_NLMSG_ERROR, self._number):
            raise OSError(errno.EPROTO, f"rtnetlink answered with message {kind} number {number}")
        (code,) = _ERROR.unpack_from(answer, _HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        # Python hides the error of the kernel. This raises it if there is no room for the socket that the look needs.
        socket.socket().close()
        raise


def _link(name: str, flags: int = 0) -> bytes:
    return _LINK.pack(socket.AF_UNSPEC, 0, 0, flags, flags) + _text(_IFLA_IFNAME, name)


def _attribute(kind: int, content: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(-size % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))


def _info(kind: str, data: bytes = b"") -> bytes:
    return _attribute(_IFLA_LINKINFO, _text(_IFLA_INFO_KIND, kind) + data)
