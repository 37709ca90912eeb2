"""The first line of a run's log, which says whether anything ran at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ["Banner"]


class Banner:
    """Stands for standard output, whose first line has no end until something has run.

    The line's beginning is written at once; what is written after it waits until the line's end is known, so that a run
    that skips everything says so where people look first. What waits is pytest's own header and the marks of skipped
    cases: nothing that would be missed if the process vanished.
    """

    def __init__(self, stream: TextIO, line: str) -> None:
        """Begin the log.

        Args:
            stream: Where it goes.
            line: The first line, without its end.
        """
        self._stream = stream
        self._waiting: list[str] | None = []
        stream.write(line)
        stream.flush()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Be standard output for a block. What goes to standard error ends the line, and so does the block's end."""
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(_Below(self, sys.stderr)):
            try:
                yield
            finally:
                self.end_line()

    def end_line(self, addition: str = "") -> None:
        """End the first line, the first time that this is called, and let everything pass from now on."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._stream.write(f"{addition}\n")
            self._stream.writelines(waiting)
            self._stream.flush()

    def write(self, text: str) -> int:
        """As of a text file."""
        if self._waiting is None:
            return self._stream.write(text)
        self._waiting.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Below:
    """Stands for standard error, which goes to the same log and would be said within the line."""

    def __init__(self, head: Banner, stream: TextIO) -> None:
        self._head = head
        self._stream = stream

    def write(self, text: str) -> int:
        self._head.end_line()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
