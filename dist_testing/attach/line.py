"""The TCP connection between a hub and a relay."""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
from collections.abc import Callable

from dist_testing.attach.loop import Loop
from dist_testing.attach.relay_messages import LINES, LineMessage
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process import wire

# A node without power or network sends nothing. The kernel asks it after so many seconds of silence, again after each
# further interval, and gives up after so many questions.
_SILENCE_S = 2
_INTERVAL_S = 1
_QUESTIONS = 6
# The same for data that the other side does not acknowledge. Milliseconds.
_UNANSWERED_MS = 8000

# <linux/sockios.h>: asks for the IPv4 address of an interface, which begins at byte 20 of struct ifreq.
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40
_ADDRESS_IN_IFREQ = slice(20, 24)

_READ_BYTES = 1 << 18


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel end the connection when the other node does not answer, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _QUESTIONS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def interface_of(address: str) -> str:
    """Return the network interface of this machine that has an IPv4 address; "" if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            entry = array.array("B", name.encode().ljust(_IFREQ_BYTES, b"\0"))
            # Without an IPv4 address.
            with contextlib.suppress(OSError):
                fcntl.ioctl(asking, _SIOCGIFADDR, entry)
                if socket.inet_ntoa(entry[_ADDRESS_IN_IFREQ].tobytes()) == address:
                    return name
    return ""


class Line:
    """An authenticated connection between two nodes.

    Args:
        loop: Reads and writes it.
        connection: The connection.
        on_message: Takes each message.
        on_end: Takes the reason when the connection is over: "" if the other side has closed it.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        on_message: Callable[[LineMessage], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self.connection = connection
        self._reader = wire.MessageReader(LINES)
        self._on_message = on_message
        self._on_end = on_end
        self.is_open = True
        loop.watch(connection, self._read)

    def send(self, message: LineMessage) -> None:
        """Send a message; nothing if the connection is over."""
        if self.is_open:
            self._loop.send(self.connection, wire.frame(LINES, message))

    def end(self, reason: str) -> None:
        """Close the connection, and tell why."""
        if self.is_open:
            self.is_open = False
            self._loop.close(self.connection)
            self._on_end(reason)

    def _read(self) -> None:
        try:
            data = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        if not data:
            self.end("")
            return
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
                if not self.is_open:
                    return
        except MessageError as error:
            self.end(str(error).partition("\n")[0])
