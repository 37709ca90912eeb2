"""Makes a process write its stacks on a signal, even while it runs C code, and notes which thread is which rank."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
from collections.abc import Iterable
from traceback import walk_stack
from types import FrameType
from typing import NamedTuple

# In the folder of a world whose ranks are threads.
_FILE = "thread-idents"
# Test code can write anything into the file, so only the wording of a report depends on it.
_LINE = re.compile(r"([0-9]{1,4}) ([0-9a-f]{1,16}) ([0-9]{1,10})")


def real_time_signal(offset: int) -> int:
    """Return the number of a real-time signal: SIGRTMIN plus `offset`.

    On macOS, which has none, the number belongs to no signal. Nothing sends it there, because ranks that are processes
    need Linux (`lifetime.check_platform`).
    """
    return int(getattr(signal, "SIGRTMIN", signal.NSIG)) + offset


# Begins a packet that is an answer of another kind. faulthandler writes text.
ANSWER_MARK = b"\0"
# faulthandler answers in the signal handler itself, so also while C code holds the GIL. This is a real-time signal,
# because test code uses SIGUSR1 and SIGUSR2.
STACKS_SIGNAL = real_time_signal(7)


def answer_with_stacks(fd: int) -> None:
    """Write the stacks of all threads to `fd` on STACKS_SIGNAL, and to descriptor 2 on a fatal signal."""
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True, chain=False)


def stack_of(frame: FrameType) -> str:
    """Return the stack that ends in `frame`, in faulthandler's format."""
    return stack_text("Stack", walk_stack(frame))


def stack_text(name: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return frames with their lines, the innermost first, in faulthandler's format."""
    lines = [f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}' for frame, line in frames]
    return "\n".join([f"{name} (most recent call first):", *lines])


def note_rank(directory: str, rank: int) -> None:
    """Note that the calling thread is rank `rank` of the world whose folder `directory` is."""
    fd = os.open(os.path.join(directory, _FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{rank} {threading.get_ident():x} {threading.get_native_id()}\n".encode())
    finally:
        os.close(fd)


class RankThreads(NamedTuple):
    """The ranks of the threads of a process. A number that was used again belongs to the last rank that had it.

    Attributes:
        idents: Python's ident of a thread to its rank.
        natives: The kernel's number of a thread, which torch prints, to its rank.
    """

    idents: dict[int, int]
    natives: dict[int, int]


def read_ranks(directory: str | os.PathLike[str]) -> RankThreads:
    """Return the ranks that the threads of a world have noted; none if no thread has."""
    try:
        with open(os.path.join(directory, _FILE), encoding="ascii", errors="replace") as file:
            found = [match for line in file if (match := _LINE.fullmatch(line.rstrip("\n")))]
    except FileNotFoundError:
        found = []
    return RankThreads(
        {int(match[2], 16): int(match[1]) for match in found}, {int(match[3]): int(match[1]) for match in found}
    )
