"""Lets test code report its position to the test that started it: a line into a named pipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from tests.support.starter import LIMIT_S, read_until

_VARIABLE = "BELL_OF_THE_TEST"


class _Process(Protocol):
    """A process that the test has started."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def log(self) -> str:
        """The output so far."""


def ring(text: str) -> None:
    """Send one line from the process under test; the waiting test sees it at once."""
    # Unbuffered, and shorter than PIPE_BUF: lines of several ranks do not mix.
    with open(os.environ[_VARIABLE], "wb", buffering=0) as pipe:
        pipe.write(f"{text}\n".encode())


class Bell:
    """Receives the lines in the test. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        path = folder / "bell"
        os.mkfifo(path)
        self.env = {_VARIABLE: str(path)}
        # Both ends, so that a rank that closes its own does not end the stream.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._lines: list[str] = []
        self._rest = b""

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def wait(self, count: int, child: _Process, limit_s: float = LIMIT_S) -> list[str]:
        """Wait until `count` lines have arrived since the last call.

        An AssertionError says that the child has ended before that, or that the limit is reached.
        """
        has_come = read_until(lambda: len(self._lines) >= count, self._read, self._fd, child.pid, limit_s)
        assert has_come, f"heard {self._lines}, waited for {count} lines; the log:\n{child.log}"
        heard, self._lines = self._lines[:count], self._lines[count:]
        return heard

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, 1 << 16)).split(b"\n")
        self._lines += [line.decode() for line in lines]
