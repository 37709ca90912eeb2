"""Reads the logs of ranks. A rank writes to its own file at the end, so that no rank waits for a reader."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from dist_testing.core.engine.hooks import WorldWatcher
from dist_testing.core.engine.report_text import print_line
from dist_testing.core.events.event import RankOutput

# Seconds between two looks at the logs.
_LOOK_S = 0.05
# Of a rank's output in a report. Native stacks of all threads can stand at its end. Bytes.
_TAIL_BYTES = 512 * 1024
# A line that does not end is shown in pieces of this size. Bytes.
_MAX_LINE_BYTES = 1 << 16


def open_regular(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    """Open a file that a rank has written; with O_CREAT, one for its user alone. Raise OSError if it is not regular.

    A test may have put something else in its place: a pipe would block this process, and a device has no end.
    """
    more = flags | os.O_NONBLOCK | os.O_NOFOLLOW
    mode, buffering = ("rb", -1) if flags == os.O_RDONLY else ("r+b", 0)
    # From its first moment a file owns the descriptor. With a second owner, Ctrl-C here closed it twice, and was lost.
    file = open(path, mode, buffering, opener=lambda name, basic: os.open(name, basic | more, 0o600))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_tail(path: Path, limit_bytes: int = _TAIL_BYTES) -> str:
    """Return the end of a rank's log; "" if the rank has not opened it; one line if a test has replaced it."""
    try:
        with open_regular(path) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit_bytes))
            return file.read(limit_bytes).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"(the output of this rank is lost: a test has replaced its log: {error})"


def print_output(event: RankOutput) -> None:
    """Print a line of a rank, as a sink of the event."""
    # A sink that raises gets no more lines.
    print_line(f"[rank {event.rank}] {event.line}")


class LiveOutput(WorldWatcher):
    """Reads the logs of a world's ranks while they write, and passes on whole lines, those of each rank in order."""

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
        for rank in range(len(self._logs)):
            self._read(rank)

    def case_over(self) -> None:
        """Pass on the rest, also lines without an end."""
        self.poll(self.next_s)
        for rank, rest in enumerate(self._open_lines):
            if rest:
                self._open_lines[rank] = b""
                self._line(rank, rest)

    def _read(self, rank: int) -> None:
        try:
            file = open_regular(self._logs[rank])
        except OSError:
            # The rank has not opened its log yet, or a test has replaced it.
            return
        with file:
            # What comes later is for the next look.
            end = os.fstat(file.fileno()).st_size
            if end < self._read_bytes[rank]:
                # The limit of the log has emptied it.
                self._read_bytes[rank] = 0
            while (at := self._read_bytes[rank]) < end:
                data, self._read_bytes[rank] = _next_part(file.fileno(), at, end)
                *lines, rest = (self._open_lines[rank] + data).split(b"\n")
                if len(rest) >= _MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                self._open_lines[rank] = rest
                for line in lines:
                    self._line(rank, line)

    def _line(self, rank: int, line: bytes) -> None:
        self._take_line(rank, line.decode(errors="replace").rstrip("\r"))


def _next_part(fd: int, at: int, end: int) -> tuple[bytes, int]:
    """Return the next bytes of a log from `at`, or a line about a hole there, and where the part after it begins."""
    try:
        data_at = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: the rest is a hole. Other errors are those of a file system that knows no holes.
        data_at = end if error.errno == errno.ENXIO else at
    if data_at > at:
        # The limit of the log has freed what was not read yet. It would read as zeros.
        return b"\n... %d bytes left out ...\n" % (data_at - at), data_at
    # A hole begins at a multiple of this size.
    data = os.pread(fd, _MAX_LINE_BYTES - at % _MAX_LINE_BYTES, at)
    # A test can shorten the log meanwhile.
    return data, at + len(data) if data else end
