"""The first line of a run's log, which says whether anything ran at all."""

from __future__ import annotations

from typing import Any, TextIO

__all__ = ["LogHead"]


class LogHead:
    """Stands for standard output until something has run.

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
