"""What the user sees while the cache is being filled. Everything goes to stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Work that is done sooner stays silent. Seconds.
FIRST_NOTE_S = 1.0
# A terminal line is redrawn in place; a log file gets a new line each time, so rarely. Seconds.
TERMINAL_INTERVAL_S = 0.25
LOG_INTERVAL_S = 5.0


def say(message: str) -> None:
    """Print one line for the user."""
    print(f"bazelw: {message}", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, measure: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Report on the work inside for as long as it runs, from its first second on.

    Args:
        label: What is being done, such as "unpacking".
        measure: Says how far it is, such as "12 of 193 packages". Called from another thread.
    """
    done = threading.Event()
    on_terminal = sys.stderr.isatty()
    started = time.monotonic()

    def line() -> str:
        elapsed_s = time.monotonic() - started
        return f"bazelw: {' '.join(filter(None, (label, measure())))} ({elapsed_s:.0f} s)"

    def report() -> None:
        pause_s = FIRST_NOTE_S
        while not done.wait(pause_s):
            if on_terminal:
                print(f"\r{line()}\033[K", end="", file=sys.stderr, flush=True)
            else:
                print(line(), file=sys.stderr, flush=True)
            pause_s = TERMINAL_INTERVAL_S if on_terminal else LOG_INTERVAL_S
        if on_terminal and pause_s != FIRST_NOTE_S:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
