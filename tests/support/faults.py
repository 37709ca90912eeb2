"""Faults, all of them real. Each takes the world and is called on the rank that must fail."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import psutil
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.ground.outcomes import Cause, Kind
from dist_testing.core.rank.rank_world import RankWorld


class _Unprintable(Exception):
    """An error that fails whenever it is formatted."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no representation")

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("cannot be pickled")


def _raise(_: World) -> None:
    raise ValueError("planted")


def _raise_unprintable(_: World) -> None:
    raise _Unprintable


def _raise_much(_: World) -> None:
    raise ValueError("head " + "x" * (8 << 20) + " tail")


def _raise_base(_: World) -> None:
    raise KeyboardInterrupt


def _signal(number: int) -> Callable[[World], None]:
    def fault(_: World) -> None:
        # To this thread: the kernel may give a signal for the process to another thread, and then SIGSTOP leaves the
        # rank time to go on.
        signal.raise_signal(number)

    return fault


def _segfault(_: World) -> None:
    # A real bad memory access, and not a signal that a process sends.
    ctypes.string_at(0)


def _exit_hard(code: int) -> Callable[[World], None]:
    return lambda _: os._exit(code)


def _exit(code: int) -> Callable[[World], None]:
    return lambda _: sys.exit(code)


def _skip(_: World) -> None:
    raise unittest.SkipTest("planted reason")


def _sleep(_: World) -> None:
    threading.Event().wait()


def _loop_with_gil(_: World) -> None:
    # A loop in C that never returns to the interpreter.
    collections.deque(itertools.repeat(None), maxlen=0)


def _wait_for_missing_message(world: World) -> None:
    peer = (world.rank + 1) % world.size
    # No rank sends with this tag.
    dist.recv(torch.zeros(1), src=peer, tag=77)


def _run_out_of_memory(_: World) -> None:
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    bytearray(1 << 30)


def _fill_disk(_: World) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def _close_descriptors(_: World) -> None:
    os.closerange(0, 256)


def _print_much(_: World) -> None:
    for _line in range(1 << 13):
        print("y" * 1023)
    sys.stdout.buffer.write(bytes(range(256)) * 64)
    raise ValueError("planted after much output")


def _fork_and_both_go_on(_: World) -> None:
    # The child returns from the test as if it were the rank.
    os.fork()


def _leave_session(world: World) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    (world.tmp_path / "pid").write_text(str(process.pid))


_ENDS_ITS_MAIN_THREAD = """
import ctypes, platform, threading
threading.Thread(target=threading.Event().wait).start()
# The system call `exit` ends one thread.
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


def _leave_thread(_: World) -> None:
    """Leave a process that is a zombie, by the state of its main thread, and that goes on."""
    process = psutil.Process(subprocess.Popen([sys.executable, "-c", _ENDS_ITS_MAIN_THREAD]).pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        os.sched_yield()


def _fork_twice(world: World) -> None:
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            (world.tmp_path / "pid").write_text(str(os.getpid()))
            threading.Event().wait()
        os._exit(0)
    os.wait()
    while not (world.tmp_path / "pid").exists():
        os.sched_yield()


def _keep_thread(_: World) -> None:
    threading.Thread(target=threading.Event().wait, daemon=False).start()


def _hang_in_destroy(world: World) -> None:
    assert isinstance(world, RankWorld)
    world.finish = lambda: threading.Event().wait()  # type: ignore[assignment,method-assign]


FAULTS: dict[str, Callable[[World], None]] = {
    "abort": lambda _: os.abort(),
    "close descriptors": _close_descriptors,
    "exit 3": _exit(3),
    "exit 0": _exit(0),
    "fill disk": _fill_disk,
    "fork": _fork_and_both_go_on,
    "fork twice": _fork_twice,
    "hang in destroy": _hang_in_destroy,
    "hard exit 0": _exit_hard(0),
    "hard exit 3": _exit_hard(3),
    "hard exit 77": _exit_hard(77),
    "keep a thread": _keep_thread,
    "keyboard interrupt": _raise_base,
    "kill": _signal(signal.SIGKILL),
    "leave a session": _leave_session,
    "leave a thread": _leave_thread,
    "out of memory": _run_out_of_memory,
    "print much": _print_much,
    "raise": _raise,
    "raise much": _raise_much,
    "raise unprintable": _raise_unprintable,
    "segfault": _segfault,
    "skip": _skip,
    "sleep": _sleep,
    "loop with GIL": _loop_with_gil,
    "stop": _signal(signal.SIGSTOP),
    "terminate": _signal(signal.SIGTERM),
    "wait for a missing message": _wait_for_missing_message,
}


@dataclass(frozen=True, slots=True)
class End:
    """What the runner must make of a fault that ends its rank: why the case fails, how the rank ended, and the text."""

    cause: Cause
    kind: Kind
    said: str


_AT_ONCE = "exited with code 0 in call, without finishing the test"
ENDS = {
    "abort": End(Cause.CRASH, Kind.SIGNALLED, "SIGABRT (6)"),
    "exit 0": End(Cause.CRASH, Kind.EXITED, _AT_ONCE),
    "exit 3": End(Cause.CRASH, Kind.EXITED, "exited with code 3"),
    "fill disk": End(Cause.FAILURE, Kind.RAISED, "No space left on device"),
    "hard exit 0": End(Cause.CRASH, Kind.EXITED, _AT_ONCE),
    "hard exit 3": End(Cause.CRASH, Kind.EXITED, "exited with code 3"),
    "hard exit 77": End(Cause.CRASH, Kind.EXITED, "exited with code 77"),
    "keyboard interrupt": End(Cause.FAILURE, Kind.RAISED, "KeyboardInterrupt"),
    "kill": End(Cause.CRASH, Kind.SIGNALLED, "SIGKILL (9)"),
    "out of memory": End(Cause.FAILURE, Kind.RAISED, "MemoryError"),
    "print much": End(Cause.FAILURE, Kind.RAISED, "planted after much output"),
    "raise": End(Cause.FAILURE, Kind.RAISED, "ValueError: planted"),
    "raise much": End(Cause.FAILURE, Kind.RAISED, "ValueError: head"),
    "raise unprintable": End(Cause.FAILURE, Kind.RAISED, "_Unprintable"),
    "segfault": End(Cause.CRASH, Kind.SIGNALLED, "SIGSEGV (11)"),
    "terminate": End(Cause.CRASH, Kind.SIGNALLED, "SIGTERM (15)"),
}


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """What the runner must make of a fault that leaves its rank running, or that is none of the test."""

    cause: Cause  # why the case fails; `Cause.NONE` if it passes
    is_culprit: bool = False  # whether the rank with the fault is to blame
    is_slow: bool = False  # whether the case ends at its deadline
    meets_peers: bool = True  # whether its rank can take part in a collective afterwards


OTHER_ENDS = {
    # The store's thread aborts on rank 0.
    "close descriptors": OtherEnd(Cause.CRASH, is_culprit=True),
    # A child that returns from the test, too, must not meet another rank in a collective.
    "fork": OtherEnd(Cause.NONE, meets_peers=False),
    "fork twice": OtherEnd(Cause.LEAK),
    "hang in destroy": OtherEnd(Cause.HANG, is_culprit=True, is_slow=True, meets_peers=False),
    "keep a thread": OtherEnd(Cause.NONE, meets_peers=False),
    "leave a session": OtherEnd(Cause.LEAK),
    "leave a thread": OtherEnd(Cause.LEAK),
    "loop with GIL": OtherEnd(Cause.HANG, is_culprit=True, is_slow=True),
    # In a world of one, all ranks skip.
    "skip": OtherEnd(Cause.DISAGREEMENT),
    "sleep": OtherEnd(Cause.HANG, is_culprit=True, is_slow=True),
    "stop": OtherEnd(Cause.HANG, is_culprit=True, is_slow=True),
}


def one_fails(world: World, body: dict[str, Any]) -> None:
    """Cause a fault on one rank; the others wait for it in a collective, or end their part."""
    dist.barrier()
    if world.rank == body["rank"] and body["fault"]:
        FAULTS[body["fault"]](world)
    if body["peers"] == "collective":
        dist.all_reduce(torch.ones(4))
