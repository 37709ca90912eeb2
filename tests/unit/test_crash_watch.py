"""Ranks that stand still in the handler of a fatal signal, with real processes in the place of ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from dist_testing.engine.crash_watch import CrashWatch
from dist_testing.engine.rank_record import RankRecord
from dist_testing.process.board import PhaseBoard
from dist_testing.procfs import blocked_signals, stat_of, threads_of

# A thread handles a signal, or blocks some as threads of libraries do.
_CODE = """
import ctypes
import signal
import sys
import threading

does, names, inherited = sys.argv[1:4]
numbers = [signal.Signals[name] for name in names.split()] or signal.valid_signals()
libc = ctypes.CDLL(None)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def work(number):
    while True:
        pass


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
    libc.signal(numbers[0], work if does == "works" else ctypes.cast(libc.pause, ctypes.c_void_p))
threading.Thread(target=act).start()
while does == "is busy":
    pass
"""


class _Ranks:
    """Records of ranks, to which a test gives processes."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self.records: list[RankRecord] = []

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start(self, does: str, signals: str = "", inherited: str = "") -> psutil.Process:
        """Start a process in the place of the next rank."""
        ours, theirs = socket.socketpair()
        self._closing.enter_context(ours)
        self._closing.enter_context(theirs)
        fd = PhaseBoard.create(1)
        board = PhaseBoard(fd, 1)
        os.close(fd)
        self._closing.callback(board.close)
        record = RankRecord(len(self.records), ours, board)
        arguments = [sys.executable, "-c", _CODE, does, signals, inherited]
        child = self._closing.enter_context(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        self._closing.callback(child.kill)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        record.pid = child.pid
        self.records.append(record)
        return psutil.Process(child.pid)


@pytest.fixture
def ranks() -> Iterator[_Ranks]:
    """No ranks yet."""
    with _Ranks() as ranks:
        yield ranks


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
def test_a_rank_that_stands_in_a_handler_is_found(ranks: _Ranks, name: str, does: str, inherited: str) -> None:
    """If this fails, a rank whose heap is damaged counts as hung, at the deadline."""
    _wait_for_mask(ranks.start(does, name, inherited), name)
    (record,) = ranks.records
    watch = CrashWatch([record])
    assert [watch.look(at_s) for at_s in (0.0, 1.0, 4.9)] == [[], [], []]
    assert watch.next_look_s >= 5.9
    assert watch.look(5.0) == [(record, signal.Signals[name])]
    assert watch.look(20.0) == [], "it has been killed, and may need long to end"


def test_ranks_that_have_ended_are_not_asked(ranks: _Ranks) -> None:
    """If this fails, a process that has got the number of a rank is taken for it."""
    _wait_for_mask(ranks.start("stands", "SIGSEGV"), "SIGSEGV")
    ranks.records[0].ended(-signal.SIGKILL, 6.0)
    watch = CrashWatch(ranks.records)
    assert [watch.look(at_s) for at_s in (0.0, 10.0, 20.0)] == [[], [], []]


def test_ranks_that_crash_together_are_told_together(ranks: _Ranks) -> None:
    """If this fails, one of them looks like a rank that has crashed, and the other like one that waits for it."""
    first, second = (ranks.start("stands", name) for name in ("SIGSEGV", "SIGABRT"))
    _wait_for_mask(first, "SIGSEGV")
    _wait_for_mask(second, "SIGABRT")
    ranks.start("works", "SIGFPE")
    one, other, works = ranks.records
    watch = CrashWatch([one, other, works])
    second.suspend()
    while second.status() != psutil.STATUS_STOPPED:
        pass
    assert watch.look(0.0) == []
    second.resume()
    _wait_for_mask(second, "SIGABRT")
    assert [watch.look(at_s) for at_s in (3.0, 4.0)] == [[], []]
    assert watch.look(5.0) == [(one, signal.SIGSEGV), (other, signal.SIGABRT)]


@pytest.mark.parametrize("signals", ["", "SIGABRT SIGSEGV", "SIGABRT", "SIGSEGV", "SIGTERM", "SIGUSR2"])
def test_threads_that_block_signals_are_left_alone(ranks: _Ranks, signals: str) -> None:
    """If this fails, a rank with a thread of a driver, or one that waits for a signal, is killed."""
    ranks.start("blocks", signals)
    watch = CrashWatch(ranks.records)
    assert [watch.look(at_s) for at_s in (0.0, 10.0, 20.0)] == [[], [], []]


def test_a_handler_that_works_has_its_time(ranks: _Ranks) -> None:
    """If this fails, a rank is killed while it prints a long native stack."""
    process = ranks.start("works", "SIGSEGV")
    watch = CrashWatch(ranks.records)
    for at_s in (0.0, 10.0, 20.0):
        assert watch.look(at_s) == []
        used_s = process.cpu_times().user
        # Two ticks of the kernel's clock.
        while process.cpu_times().user < used_s + 0.02:
            pass


def test_a_rank_that_a_debugger_has_stopped_is_left_alone(ranks: _Ranks) -> None:
    """If this fails, a user who looks at a crash in a debugger loses the process."""
    process = ranks.start("stands", "SIGSEGV")
    _wait_for_mask(process, "SIGSEGV")
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        pass
    watch = CrashWatch(ranks.records)
    assert [watch.look(at_s) for at_s in (0.0, 10.0, 20.0)] == [[], [], []]
