"""Messages for the user while the cache is being filled, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Shorter work is not reported. Seconds.
FIRST_NOTE_S = 1.0
# On a terminal the line is redrawn in place. A log file gets a new line each time, so less often. Seconds.
TERMINAL_INTERVAL_S = 0.25
LOG_INTERVAL_S = 5.0


def say(message: str) -> None:
    """Print one line for the user."""
    print(f"bazelw: {message}", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, measure: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Report on the work inside, from its first second until it ends.

    Args:
        label: Name of the work, such as "unpacking".
        measure: Returns the progress, such as "12 of 193 packages". Called from another thread.
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
