"""Notes which thread is which rank. The ranks write the notes; the runner reads them to name stacks."""

from __future__ import annotations

import os
import re
import threading

__all__ = ["note_rank", "read_ranks"]

_FILE = "thread-idents"
# Test code can write anything into the file, so only the wording of a report depends on it.
_LINE = re.compile(r"([0-9]{1,4}) ([0-9a-f]{1,16})")


def note_rank(directory: str, rank: int) -> None:
    """Note that the calling thread is rank `rank` of the world whose folder `directory` is."""
    fd = os.open(os.path.join(directory, _FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{rank} {threading.get_ident():x}\n".encode())
    finally:
        os.close(fd)


def read_ranks(directory: str | os.PathLike[str]) -> dict[int, int]:
    """Return the rank of each thread ident. A reused ident belongs to the last rank that had it."""
    try:
        with open(os.path.join(directory, _FILE), encoding="ascii", errors="replace") as file:
            found = [_LINE.fullmatch(line.rstrip("\n")) for line in file]
    except FileNotFoundError:
        return {}
    return {int(match[2], 16): int(match[1]) for match in found if match}
