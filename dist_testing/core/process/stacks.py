"""Makes a process write its stacks on a signal, even while it runs C code, and when a signal ends it."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import signal
import sys
import threading
from collections.abc import Iterable
from traceback import walk_stack
from types import FrameType

# Begins a packet that is an answer of another kind. faulthandler writes text.
ANSWER_MARK = b"\0"
# faulthandler answers in the signal handler itself, so also while C code holds the GIL. This is a real-time signal,
# because test code uses SIGUSR1 and SIGUSR2. On macOS, which has none, the number belongs to no signal, and nothing
# sends it: ranks that are processes need Linux (`lifetime.check_platform`).
STACKS_SIGNAL = int(getattr(signal, "SIGRTMIN", signal.NSIG)) + 7
# Each sanitizer of GCC and Clang brings one of these functions, and handlers of its own that explain a fault better.
_OF_SANITIZERS = ("__asan_init", "__tsan_init", "__msan_init", "__hwasan_init")


def answer_with_stacks(fd: int) -> None:
    """Write the stacks of all threads to `fd` on STACKS_SIGNAL, and to descriptor 2 on a fatal signal."""
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True, chain=False)


def frames_of_others() -> dict[int, FrameType]:
    """Return the newest frame of each other thread, by the thread's number.

    The frame of this thread would hold the result, and be in it: such a cycle keeps all frames, and the objects of a
    test, alive.
    """
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return frames


def stack_of(frame: FrameType) -> str:
    """Return the stack that ends in `frame`, in faulthandler's format."""
    return stack_text("Stack", walk_stack(frame))


def stack_text(name: str, frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return frames with their lines, the innermost first, in faulthandler's format."""
    lines = [f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}' for frame, line in frames]
    return "\n".join([f"{name} (most recent call first):", *lines])


@functools.cache
def has_sanitizer() -> bool:
    """Return whether this process runs under a sanitizer that handles fatal signals.

    The search takes 0.3 ms. A fork has the answer of the process that it was forked from.
    """
    process = ctypes.CDLL(None)
    return any(hasattr(process, name) for name in _OF_SANITIZERS)


def print_native_stacks() -> None:
    """Have torch print the native stacks of all threads to descriptor 2 on a fatal signal, if torch is loaded.

    Its handler then calls the earlier one, so call this after `faulthandler.enable`: the Python stack comes last.
    """
    torch = sys.modules.get("torch")
    switch = getattr(getattr(torch, "_C", None), "_set_print_stack_traces_on_fatal_signal", None)
    if switch is None or has_sanitizer():
        return
    interrupt = signal.getsignal(signal.SIGINT)
    switch(True)
    if interrupt is not None:
        # torch counts it among the fatal signals; Ctrl-C is none.
        signal.signal(signal.SIGINT, interrupt)
