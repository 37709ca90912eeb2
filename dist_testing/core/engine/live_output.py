"""Reads the logs of ranks while the ranks write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dist_testing.core.engine.hooks import WorldWatcher
from dist_testing.core.engine.rank_logs import open_regular

# Seconds between two looks at the logs.
_LOOK_S = 0.05
# A line that does not end is shown in pieces of this size. Bytes.
_MAX_LINE_BYTES = 1 << 16


class LiveOutput(WorldWatcher):
    """Reads the logs of a world's ranks and passes on whole lines, those of each rank in order.

    A rank writes to a file, so that no rank waits for the terminal.
    """

    next_s = 0.0

    def __init__(self, logs: Sequence[Path], take_line: Callable[[int, str], None]) -> None:
        """Watch the logs, by rank, which need not exist yet. `take_line` gets the rank and the text of each line."""
        self._logs = logs
        self._read_bytes = [0] * len(logs)
        self._open_lines = [b""] * len(logs)
        self._take_line = take_line

    def poll(self, now_s: float) -> None:
        """Pass on all new lines."""
        self.next_s = now_s + _LOOK_S
        self._read_all()

    def _read_all(self) -> None:
        for rank in range(len(self._logs)):
            self._read(rank)

    def case_over(self) -> None:
        """Pass on the rest, also lines without an end."""
        self._read_all()
        for rank, rest in enumerate(self._open_lines):
            if rest:
                self._open_lines[rank] = b""
                self._line(rank, rest)

    def _read(self, rank: int) -> None:
        try:
            # What comes later is for the next look. Most looks find nothing, and a file need not be opened for that.
            left = os.stat(self._logs[rank]).st_size - self._read_bytes[rank]
            if left <= 0:
                return
            file = open_regular(self._logs[rank])
        except OSError:
            # The rank has not opened its log yet, or a test has replaced it.
            return
        with file:
            file.seek(self._read_bytes[rank])
            while left > 0 and (data := file.read(min(left, _MAX_LINE_BYTES))):
                left -= len(data)
                self._read_bytes[rank] += len(data)
                *lines, rest = (self._open_lines[rank] + data).split(b"\n")
                if len(rest) >= _MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                self._open_lines[rank] = rest
                for line in lines:
                    self._line(rank, line)

    def _line(self, rank: int, line: bytes) -> None:
        self._take_line(rank, line.decode(errors="replace").rstrip("\r"))
