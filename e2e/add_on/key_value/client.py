"""A connection to the server."""

from __future__ import annotations

import os
import socket
from types import TracebackType

# Set for the ranks of a world that has a server.
ADDRESS = "KEY_VALUE_ADDRESS"


class UnknownKeyError(LookupError):
    """No rank has set the key."""


class Client:
    """A connection, to use in a `with` block."""

    def __init__(self, address: str = "") -> None:
        """Connect to `host:port`. Default: the server of this rank's world."""
        host, _, port = (address or os.environ[ADDRESS]).rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._answers = self._socket.makefile("r", encoding="utf-8")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._answers.close()
        self._socket.close()

    def ask(self, *words: object) -> str:
        """Send a request of `key_value.server`, and return the answer."""
        self._socket.sendall(" ".join(map(str, words)).encode() + b"\n")
        return self._answers.readline().rstrip("\n")

    def get(self, key: str) -> str:
        """Return the value of a key.

        Raises:
            UnknownKeyError: If the server has no such key.
        """
        if not (value := self.ask("get", key)):
            raise UnknownKeyError(key)
        return value

    def keys(self) -> list[str]:
        """Return all keys."""
        return self.ask("keys").split()
