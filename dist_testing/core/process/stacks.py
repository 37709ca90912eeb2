"""Makes a process write its stacks on a signal, even while it runs C code."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterable
from traceback import walk_stack
from types import FrameType


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
