"""The bodies of the tests on the ranks, the same for torch's classes and the library's."""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from verdict_table.cases import CASES, EVERY_RANK, Case

# The limit of the group of torch's continuous class, divided by a test's limit. Its default is 120 s.
GROUP_LIMIT_FACTOR = 1.5

_CASE = "DIST_VERDICTS_CASE"
_LIMIT = "DIST_VERDICTS_LIMIT"
_EVENTS = "DIST_VERDICTS_EVENTS"

# Time between the last message of the peers and the fault, so that the peers have reached the end of the call in which
# they wait, or have ended, as in a test that has run for a while. Nothing depends on its length. Seconds.
_SETTLE_S = 0.7
# Longer than any limit. Seconds.
_FOREVER_S = 1000.0


class _ProcessTest(Protocol):
    """The common part of torch's `MultiProcessTestCase` and the library's, on a rank."""

    rank: int
    file_name: str

    @property
    def world_size(self) -> int: ...

    def addCleanup(self, function: Callable[..., Any], /, *args: Any) -> None: ...


def order_env(case: Case, *, limit_s: int, events: Path) -> dict[str, str]:
    """Return the environment variables of a suite: its case, the limit of a test in seconds, the file for messages."""
    return {_CASE: case.key, _LIMIT: str(limit_s), _EVENTS: str(events)}


@functools.cache
def ordered_case() -> Case:
    """Return the case that this process must run.

    Raises:
        KeyError: If the program has not started this process.
    """
    return CASES[os.environ[_CASE]]


def limit_s() -> float:
    """Return the limit of a test, in seconds."""
    return float(os.environ[_LIMIT])


def run_process_case(test: _ProcessTest) -> None:
    """Run the ordered case as a test that makes its group itself."""
    if ordered_case().cleanups:
        test.addCleanup(_tell, "cleanup", test.rank)
    store = FileStore(test.file_name, test.world_size)
    dist.init_process_group("gloo", store=store, rank=test.rank, world_size=test.world_size)
    run_case(test.rank)


def run_case(rank: int) -> None:
    """Run the ordered case on a rank, in the default group."""
    case = ordered_case()
    _tell("started", rank)
    # Otherwise a core dump would be timed, too, and the file would stay.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if case.peers == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    if case.rank in (rank, EVERY_RANK):
        time.sleep(_SETTLE_S)
        _tell("fault", rank)
        if case.fault:
            _FAULTS[case.fault](rank)
    elif case.peers == "all_reduce":
        dist.all_reduce(torch.ones(4))
    elif case.peers in ("sleep", "deaf"):
        _hang(rank)


def run_next() -> None:
    """Run the test that follows the case in its class, without any fault."""
    dist.all_reduce(torch.ones(4))


def _tell(event: str, rank: int, pid: int | None = None) -> None:
    """Report that something happens now."""
    line = {"event": event, "rank": rank, "pid": os.getpid() if pid is None else pid, "at_s": time.monotonic()}
    # Not buffered: the lines of several ranks do not mix.
    with open(os.environ[_EVENTS], "ab", buffering=0) as events:
        events.write(f"{json.dumps(line)}\n".encode())


def _raise(text: str = "planted") -> Callable[[int], None]:
    def fault(_: int) -> None:
        raise ValueError(text)

    return fault


def _exit(code: int) -> Callable[[int], None]:
    return lambda _: os._exit(code)


def _skip(_: int) -> None:
    raise unittest.SkipTest("a reason of its own")


def _hang(_: int) -> None:
    time.sleep(_FOREVER_S)


def _hang_deaf(rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang(rank)


def _loop_with_gil(_: int) -> None:
    # A loop in C that never returns to the interpreter.
    collections.deque(itertools.repeat(None), maxlen=0)


def _start_process(rank: int, then: Callable[[int], None]) -> None:
    process = subprocess.Popen(["sleep", str(_FOREVER_S)])
    _tell("grandchild", rank, process.pid)
    then(rank)


def _keep_thread(_: int) -> None:
    threading.Thread(target=time.sleep, args=(_FOREVER_S,), daemon=False).start()


_FAULTS: dict[str, Callable[[int], object]] = {
    "SIGKILL": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "_exit(0)": _exit(0),
    "_exit(10)": _exit(10),
    "_exit(3)": _exit(3),
    "_exit(70)": _exit(70),
    "_exit(72)": _exit(72),
    "_exit(77)": _exit(77),
    "_exit(89)": _exit(89),
    "_exit(90)": _exit(90),
    "abort": lambda _: os.abort(),
    "hang": _hang,
    "hang deaf": _hang_deaf,
    "hang with GIL": _loop_with_gil,
    "keep a thread": _keep_thread,
    "raise": _raise(),
    "raise 3 MB": _raise("planted " + "x" * 3_000_000),
    "raise 300 kB": _raise("planted " + "x" * 300_000),
    # A bad read causes the signal, as in real code, and not `kill`.
    "segfault": lambda _: ctypes.string_at(0),
    "skip": _skip,
    "start a process, hang": lambda rank: _start_process(rank, _hang),
    "start a process, raise": lambda rank: _start_process(rank, _raise()),
    "sys.exit(77)": lambda _: sys.exit(77),
}
