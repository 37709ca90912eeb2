"""Makes a process print the stacks of its native code when a signal ends it."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys

# Each sanitizer of GCC and Clang brings one of these functions, and handlers of its own that explain a fault better.
_OF_SANITIZERS = ("__asan_init", "__tsan_init", "__msan_init", "__hwasan_init")


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
