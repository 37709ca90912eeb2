"""Processes that wait in the handler of a fatal signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from dist_testing.core.engine.crash_text import handled_signal
from dist_testing.core.ground.procfs import blocked_signals, stat_of, threads_of

# A thread handles a signal, or blocks some as threads of libraries do.
_CODE = """
import ctypes
import signal
import sys
import threading

does, names, inherited = sys.argv[1:4]
numbers = [signal.Signals[name] for name in names.split()] or signal.valid_signals()
libc = ctypes.CDLL(None)


def act():
    if does == "blocks":
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    print("ready", flush=True)
    if does == "blocks":
        threading.Event().wait()
    libc["raise"](numbers[0])


if inherited:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
if does != "blocks":
    libc.signal(numbers[0], ctypes.cast(libc.pause, ctypes.c_void_p))
threading.Thread(target=act).start()
while does == "is busy":
    pass
"""


@pytest.fixture
def start() -> Iterator[Callable[..., psutil.Process]]:
    """Start a process that handles or blocks signals, as `does` says."""
    with ExitStack() as closing:

        def start(does: str, signals: str, inherited: str = "") -> psutil.Process:
            arguments = [sys.executable, "-c", _CODE, does, signals, inherited]
            child = closing.enter_context(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
            closing.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            return psutil.Process(child.pid)

        yield start


def _wait_for_mask(process: psutil.Process, name: str) -> None:
    """Wait until a thread sleeps with the signal blocked."""
    bit, pipe = (1 << (number - 1) for number in (signal.Signals[name], signal.SIGPIPE))
    # The C library blocks all signals for a moment.
    while not any(
        blocked_signals(process.pid, thread) & ~pipe == bit and stat_of(process.pid, thread)[:1] == ["S"]
        for thread in threads_of(process.pid)
    ):
        pass


@pytest.mark.parametrize(
    ("name", "does", "inherited"),
    [
        ("SIGABRT", "stands", ""),
        ("SIGSEGV", "stands", ""),
        ("SIGBUS", "stands", ""),
        ("SIGILL", "stands", ""),
        ("SIGFPE", "stands", ""),
        ("SIGABRT", "stands", "SIGPIPE"),
        ("SIGABRT", "is busy", ""),
    ],
)
def test_a_handler_that_waits_is_found(
    start: Callable[..., psutil.Process], name: str, does: str, inherited: str
) -> None:
    """If this fails, the report does not say that a rank that hangs has crashed."""
    process = start(does, name, inherited)
    _wait_for_mask(process, name)
    assert handled_signal(process.pid) == signal.Signals[name]
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        pass
    assert handled_signal(process.pid) is None, "a debugger can have stopped it"


@pytest.mark.parametrize("signals", ["", "SIGABRT SIGSEGV", "SIGTERM"])
def test_threads_that_block_other_signals_are_in_no_handler(start: Callable[..., psutil.Process], signals: str) -> None:
    """If this fails, a rank with a thread of a driver looks like one that has crashed."""
    assert handled_signal(start("blocks", signals).pid) is None


def test_a_process_that_has_ended_is_in_no_handler() -> None:
    """If this fails, a rank that ends at the deadline is an error of the runner."""
    assert handled_signal(None) is None
