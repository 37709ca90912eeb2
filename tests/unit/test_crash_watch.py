"""Ranks that stand still in the handler of a fatal signal, with real processes in the place of ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from dist_testing.engine.crash_watch import CrashWatch
from dist_testing.engine.rank_record import RankRecord
from dist_testing.process.board import PhaseBoard

# A thread blocks signals as a handler does, or as threads of libraries do, and then stands still or not.
_CODE = """
import signal
import sys
import threading


def stand():
    names = sys.argv[1].split()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.Signals[name] for name in names] or signal.valid_signals())
    print("ready", flush=True)
    while sys.argv[2] == "spins":
        pass
    threading.Event().wait()


threading.Thread(target=stand).start()
"""


@pytest.fixture
def record() -> Iterator[RankRecord]:
    """The record of a rank; a test gives it a process."""
    ours, theirs = socket.socketpair()
    fd = PhaseBoard.create(1)
    board = PhaseBoard(fd, 1)
    os.close(fd)
    with ours, theirs:
        yield RankRecord(0, ours, board)
    board.close()


@contextmanager
def _process(record: RankRecord, signals: str, activity: str) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", _CODE, signals, activity], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            record.pid = child.pid
            yield psutil.Process(child.pid)
        finally:
            child.kill()


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"])
def test_a_rank_that_stands_in_a_handler_is_found(record: RankRecord, name: str) -> None:
    """If this fails, a rank whose heap is damaged counts as hung, at the deadline."""
    with _process(record, name, "stands") as process:
        watch = CrashWatch([record])
        # Its other threads may still run until the end of the interpreter's start.
        while process.status() != psutil.STATUS_SLEEPING:
            pass
        assert [watch.look(at_s) for at_s in (0.0, 1.0, 4.9)] == [[], [], []]
        assert watch.next_look_s >= 5.9
        assert watch.look(5.0) == [(record, signal.Signals[name])]
        # The kernel's word is only for ranks that run.
        record.ended(-signal.SIGKILL, 6.0)
        assert watch.look(7.0) == []


@pytest.mark.parametrize("signals", ["", "SIGABRT SIGSEGV", "SIGTERM", "SIGUSR2"])
def test_threads_that_block_signals_are_left_alone(record: RankRecord, signals: str) -> None:
    """If this fails, a rank with a thread of a driver, or one that waits for a signal, is killed."""
    with _process(record, signals, "stands"):
        watch = CrashWatch([record])
        assert [watch.look(at_s) for at_s in (0.0, 10.0, 20.0)] == [[], [], []]


def test_a_handler_that_works_has_its_time(record: RankRecord) -> None:
    """If this fails, a rank is killed while it prints a long native stack."""
    with _process(record, "SIGSEGV", "spins") as process:
        watch = CrashWatch([record])
        for at_s in (0.0, 10.0, 20.0):
            assert watch.look(at_s) == []
            used_s = process.cpu_times().user
            # Two ticks of the kernel's clock.
            while process.cpu_times().user < used_s + 0.02:
                pass


def test_a_rank_that_a_debugger_has_stopped_is_left_alone(record: RankRecord) -> None:
    """If this fails, a user who looks at a crash in a debugger loses the process."""
    with _process(record, "SIGSEGV", "stands") as process:
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            pass
        watch = CrashWatch([record])
        assert [watch.look(at_s) for at_s in (0.0, 10.0, 20.0)] == [[], [], []]
