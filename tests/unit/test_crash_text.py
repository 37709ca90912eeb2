"""Native code that ends a process, in a report: what it says before, and a handler of a signal that does not end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from dist_testing.core.engine.crash_text import handled_signal, native_reason, shorten_native_stacks
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.procfs import blocked_signals, stat_of, threads_of
from tests.support.results import result_of

_THREADS = "".join(
    f"\nSIGABRT(6), PID: 7, Thread {thread}: \n"
    " frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f5d in /v/torch/lib/libc10.so)\n"
    + (
        "frame #1: c10::FatalSignalHandler::fatalSignalHandler(int, siginfo_t*) + 0x2 (0x7f5d in /v/libc10.so)\n"
        * (thread == 3)
    )
    + "frame #1: <unknown function> + 0x3c050 (0x7f5d in /lib/libc.so.6)\n"
    f"frame #2: of_thread_{thread}(int, char*) + 0x65 (0x7f5d in /home/me/build/libmine.so)\n"
    "<omitting python frames>\n"
    "frame #10: __libc_start_main + 0x85 (0x7f5d in /lib/libc.so.6)\n"
    for thread in range(30)
)
_PYTHON = (
    'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "test_a.py", line 8 in crash'
)
_LOG = f"of the test\nfree(): double free detected in tcache 2\n{_THREADS.lstrip()}{_PYTHON}\n"


def test_the_thread_that_got_the_signal_is_left_with_readable_frames() -> None:
    """If this fails, the stack that matters drowns in those of thirty waiting threads and in addresses."""
    assert shorten_native_stacks(_LOG).splitlines() == [
        "of the test",
        "free(): double free detected in tcache 2",
        "Native stack of the thread that got SIGABRT (most recent call first):",
        "  <unknown function> in libc.so.6",
        "  of_thread_3(int, char*) in libmine.so",
        "(native stacks of 29 other thread(s) left out)",
        "",
        *_PYTHON.splitlines(),
    ]


def test_a_stack_of_another_thread_is_not_called_that_of_the_signal() -> None:
    """If this fails, a stack is shown as the cause that is not, because the one of the signal is missing in the log."""
    others = "\n".join(line for line in _THREADS.splitlines() if "fatalSignalHandler" not in line).lstrip()
    lines = shorten_native_stacks(others).splitlines()
    assert lines[0] == "Native stack of a thread (most recent call first):"
    assert "  of_thread_0(int, char*) in libmine.so" in lines


def test_a_text_without_native_stacks_stays_as_it_is() -> None:
    """If this fails, output of a test that looks a little like a stack is lost."""
    text = "frame #1: of a film (0x1 in /a)\nSIGABRT(6), PID: 7\n\nother"
    assert shorten_native_stacks(text) == text


def test_a_report_has_the_reason_the_native_stack_and_the_python_stack() -> None:
    """If this fails, the report of a crash in native code has the last forty lines, and not the stack."""
    log = "".join(f"before {number}\n" for number in range(100)) + _LOG + "Extension modules: a, b\n" * 60
    report = failure_report(result_of([RankOutcome(0, Kind.SIGNALLED, 101.0, signal=6)], logs={0: log}))
    assert report.splitlines()[1] == (
        "Native code ended the process: free(): double free detected in tcache 2. Its last output is below."
    )
    order = [report.index(part) for part in ("\nfree(): double", "of_thread_3(int", "line 8 in crash")]
    assert order == sorted(order)
    assert "of_thread_1(" not in report
    assert "before 10\n" not in report


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("just output\nterminate the world", ""),
        (
            "x\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n",
            "terminate called after throwing an instance of 'std::runtime_error': boom",
        ),
        ("terminate called without an active exception\n", "terminate called without an active exception"),
        ("free(): invalid pointer\n", "free(): invalid pointer"),
        ("double free or corruption (out)\n", "double free or corruption (out)"),
        ("*** stack smashing detected ***: terminated\n", "*** stack smashing detected ***: terminated"),
        ("a.out: a.c:3: f: Assertion `x > 0' failed.\n", "a.out: a.c:3: f: Assertion `x > 0' failed."),
        (
            "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n"
            "SUMMARY: AddressSanitizer: heap-use-after-free a.c:3 in f\n",
            "AddressSanitizer: heap-use-after-free a.c:3 in f",
        ),
        ("a.c:3:5: runtime error: signed integer overflow\n", "a.c:3:5: runtime error: signed integer overflow"),
        (
            "SUMMARY: ThreadSanitizer: data race a.c:3 in f\na.c:3:5: runtime error: shift\n",
            "ThreadSanitizer: data race a.c:3 in f",
        ),
    ],
    ids=lambda value: value[:20],
)
def test_the_reason_that_native_code_gives(log: str, reason: str) -> None:
    """If this fails, the explanation of a crash is general although the log has the reason."""
    assert native_reason(log) == reason


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
