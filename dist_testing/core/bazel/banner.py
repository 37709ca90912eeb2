"""Writes the first line of a run's log, which says whether any test ran."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Banner:
    """Replaces standard output, and leaves its first line open until a test has run.

    It writes the start of the line at once, and holds back all later output until it knows the end of the line. So a
    run that skips everything says so in the first line. The held output is pytest's header and the marks of skipped
    cases, which are no loss if the process vanishes.
    """

    def __init__(self, stream: TextIO, line: str) -> None:
        """Write `line`, the start of the first line, to the log."""
        self._stream = stream
        self._waiting: list[str] | None = []
        stream.write(line)
        stream.flush()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace standard output in a block. Output to standard error ends the line, as does the end of the block."""
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(_ErrorStream(self, sys.stderr)):
            try:
                yield
            finally:
                self.end_line()

    def end_line(self, addition: str = "") -> None:
        """End the first line and stop holding back output. Only the first call has an effect."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._stream.write(f"{addition}\n")
            self._stream.writelines(waiting)
            self._stream.flush()

    def write(self, text: str) -> int:
        """Write the text, or hold it back; return its length."""
        if self._waiting is None:
            return self._stream.write(text)
        self._waiting.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ErrorStream:
    """Replaces standard error, which goes to the same log, and ends the first line before any output."""

    def __init__(self, banner: Banner, stream: TextIO) -> None:
        self._banner = banner
        self._stream = stream

    def write(self, text: str) -> int:
        self._banner.end_line()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
