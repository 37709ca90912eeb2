"""The loop of a hub or a relay: waits for sockets, reads those that have something, and writes without blocking."""

from __future__ import annotations

import contextlib
import math
import select
import socket
from collections import deque
from collections.abc import Callable

# While an outlet holds more than this, nothing is read, so that a slow reader slows the writers down. Bytes.
_FULL_BYTES = 8 << 20
_ALWAYS = select.POLLHUP | select.POLLERR | select.POLLNVAL


class _Outlet:
    """Data that waits for room in a socket, and calls to make when all data before them is written."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._queue: deque[bytes | Callable[[], None]] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, item: bytes | Callable[[], None]) -> None:
        self._queue.append(item)
        self.size += len(item) if isinstance(item, bytes) else 0

    def flush(self) -> None:
        while self._queue:
            item = self._queue[0]
            if isinstance(item, bytes):
                try:
                    sent = self._connection.send(item, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    return
                except OSError:
                    # The peer has gone. Who reads from it will see that.
                    sent = len(item)
                self.size -= sent
                if sent < len(item):
                    self._queue[0] = item[sent:]
                    continue
            self._queue.popleft()
            if not isinstance(item, bytes):
                item()


class Loop:
    """Waits for sockets. Everything happens in one thread."""

    def __init__(self) -> None:
        self._readers: dict[int, Callable[[], object]] = {}
        self._outlets: dict[int, _Outlet] = {}

    def watch(self, source: socket.socket | int, on_readable: Callable[[], object]) -> None:
        """Call a function whenever there is something to read, or the other end is closed."""
        self._readers[source if isinstance(source, int) else source.fileno()] = on_readable

    def forget(self, source: socket.socket | int) -> None:
        """Wait for it no more, and drop what could not be written."""
        fd = source if isinstance(source, int) else source.fileno()
        self._readers.pop(fd, None)
        self._outlets.pop(fd, None)

    def close(self, connection: socket.socket) -> None:
        """Forget a socket and close it."""
        self.forget(connection)
        connection.close()

    def send(self, connection: socket.socket, item: bytes | Callable[[], None]) -> None:
        """Write data as soon as there is room; or call a function when everything before it is written."""
        outlet = self._outlets.get(connection.fileno())
        if outlet is None:
            outlet = self._outlets[connection.fileno()] = _Outlet(connection)
        outlet.add(item)
        # At once, as long as there is room: most data never waits.
        outlet.flush()

    def drain(self, connection: socket.socket, limit_s: float) -> None:
        """Write what waits for this socket, for at most `limit_s` seconds in all."""
        with contextlib.suppress(OSError):
            outlet = self._outlets.get(connection.fileno())
            poller = select.poll()
            poller.register(connection, select.POLLOUT)
            while outlet and poller.poll(1000 * limit_s):
                outlet.flush()

    def look(self, limit_s: float = math.inf) -> None:
        """Wait for the next thing to do, at most `limit_s` seconds, and do it."""
        is_full = any(outlet.size > _FULL_BYTES for outlet in self._outlets.values())
        poller = select.poll()
        for fd in self._readers.keys() | self._outlets.keys():
            wanted = select.POLLIN if fd in self._readers and not is_full else 0
            if self._outlets.get(fd):
                wanted |= select.POLLOUT
            poller.register(fd, wanted)
        for fd, seen in poller.poll(None if limit_s == math.inf else math.ceil(1000 * limit_s)):
            if seen & select.POLLOUT and (outlet := self._outlets.get(fd)) is not None:
                outlet.flush()
            if seen & (select.POLLIN | _ALWAYS):
                if (reader := self._readers.get(fd)) is not None:
                    reader()
                else:
                    # Only written to, and the other end is closed.
                    self._outlets.pop(fd, None)
