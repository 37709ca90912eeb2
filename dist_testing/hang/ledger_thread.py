"""Tells the collective ledger of this rank when the runner asks, also while the main thread is blocked in native code.

A helper thread waits for requests. It is no thread of `threading`, so tests that count threads do not see it; it takes
no signals; and it steps aside while the test forks, so that a fork finds the threads that the test has started and no
other. It reads and writes nothing that belongs to the test.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

from dist_testing.core.ground.backends import all_declared
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.rank.children import LOOKING, child_processes
from dist_testing.core.rank.groups import backend_of_groups
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.ledger import ANSWER_MARK, FOR_CALLS, LEDGERS, Call, Ledger, LedgerAnswer, NoLedger
from dist_testing.hang.recorder import (
    MAX_TEXT,
    calls_made,
    device_calls,
    hooked_groups,
    known_groups,
    recorded_calls,
    with_details,
)
from dist_testing.hang.waits import C10D, wait_of

# What fits into a message.
_LARGEST_POSITION = (1 << 62) - 1
# Of the calls that have ended.
_LAST_CALLS = 16
# In an answer about calls only. As many fit into a packet.
_MOST_CALLS = 120
# A GPU can have thousands of calls ahead of it; the newest are kept.
_MAX_DEVICE_CALLS = 32
# Packages in whose lines a reader cannot see what their test does.
_LIBRARIES = ("torch", "dist_testing", "_pytest", "pluggy")
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_FROZEN = "<frozen "
# Tests can be part of a package that is installed.
_INSTALLED = "site-packages"
# Below its frames stand those of the process that the rank was forked from.
_LAUNCH = os.path.join(os.path.dirname(os.path.dirname(__file__)), "core", "launch", "")
# Threads of this library, by their names.
_OUR_THREADS = "dist_testing"
# For the helper to end its thread before a fork; it answers in milliseconds. Seconds.
_STEP_ASIDE_S = 1.0
_PAUSE_S = 0.0002
# A signal to the process must never find a thread of ours to take it. When the process crashes, torch asks every thread
# for its native stack by SIGUSR2, and waits seconds for one that blocks it.
_BLOCKED = signal.valid_signals() - {signal.SIGUSR2}


class LedgerService(RankService):
    """Answers the runner's requests for the ledger of a new process."""

    def __init__(self, rank: ServedRank) -> None:
        self._start = rank.start

    def start(self) -> None:
        """Start the helper thread. Threads find out themselves who waits for whom."""
        if not self._start.request.in_process_of:
            LedgerThread(self._start.stacks_fd, (self._start.rank, self._start.request.size))


class LedgerThread:
    """The helper thread of a process, which has at most one."""

    # The one whose thread steps aside when the process forks.
    in_use: ClassVar[LedgerThread | None] = None

    def __init__(self, fd: int, own: tuple[int, int] = (0, 1)) -> None:
        """Start the thread; the calling thread is the one that runs the test.

        `fd` is a Unix socket that requests come from and answers go to; it stays the caller's. `own` are the number
        of this rank in its world and the size of the world.
        """
        self._fd = fd
        self._own = own
        self._main = threading.get_ident()
        self._ident = 0
        self._native_id = 0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended = _thread.allocate_lock()
        self._pid = os.getpid()
        LedgerThread.in_use = self
        self.resume()

    def resume(self) -> None:
        """Start the thread, also again after `step_aside`."""
        # A thread that did not step aside in time still runs.
        if os.getpid() != self._pid or not self._ended.acquire(blocking=False):
            return
        # The thread inherits this from its first moment.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self._ident = _thread.start_new_thread(self._serve, ())
        except RuntimeError:
            # The machine has no room for a thread; then the deadline decides alone.
            self._ended.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def step_aside(self) -> None:
        """End the thread, if it runs in this process, and return when the kernel no longer knows it."""
        if os.getpid() != self._pid:
            return
        os.eventfd_write(self._wake, 1)
        end_s = time.monotonic() + _STEP_ASIDE_S
        if self._ended.acquire(timeout=_STEP_ASIDE_S):
            self._ended.release()
            with contextlib.suppress(BlockingIOError):
                # The thread may have ended before, by itself.
                os.eventfd_read(self._wake)
            # The interpreter has let it go; the kernel takes a moment longer.
            while os.path.exists(f"/proc/self/task/{self._native_id}") and time.monotonic() < end_s:
                time.sleep(_PAUSE_S)

    def _serve(self) -> None:
        try:
            self._native_id = threading.get_native_id()
            poller = select.poll()
            for fd in (self._fd, self._wake):
                poller.register(fd, select.POLLIN)
            while True:
                for fd, event in poller.poll():
                    if fd == self._wake:
                        return
                    if not event & select.POLLIN or not self._answer():
                        return
        finally:
            self._ended.release()

    def _answer(self) -> bool:
        """Answer one request; False if there will be no more."""
        # The test may have closed the descriptor, and the runner may be gone.
        try:
            with _borrowed(self._fd) as channel:
                request = channel.recv(1)
                if not request:
                    return False
                with LOOKING:
                    answer = read_ledger(self._main, {self._ident}, self._own, for_calls=bool(request[0] & FOR_CALLS))
                channel.send(ANSWER_MARK + request + encoded(answer))
        except OSError:
            return False
        return True


def _before_fork() -> None:
    if LedgerThread.in_use is not None:
        LedgerThread.in_use.step_aside()


def _after_fork() -> None:
    if LedgerThread.in_use is not None:
        LedgerThread.in_use.resume()


# Once, for all threads and forks: it cannot be undone.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """The socket of a descriptor that stays open. An OSError, if a file of the test has its number meanwhile."""
    channel = socket.socket(fileno=fd)
    try:
        yield channel
    finally:
        channel.detach()


def encoded(answer: LedgerAnswer) -> bytes:
    """Return an answer as bytes; where it is too large, one that says so."""
    try:
        return LEDGERS.to_wire(answer)
    except MessageError as error:
        return LEDGERS.to_wire(NoLedger(str(error).partition("\n")[0]))


def read_ledger(main: int, ours: set[int], own: tuple[int, int] = (0, 1), *, for_calls: bool = False) -> LedgerAnswer:
    """Read the ledger of this process, or all its calls. The test runs on the thread `main`; `ours` are no test's."""
    try:
        return calls_made(most=_MOST_CALLS) if for_calls else _read(main, ours, own)
    except Exception as error:
        # The test may have put anything in the places that are read here, and torch may have changed them.
        return NoLedger(f"{type(error).__name__}: {error}"[:MAX_TEXT])


def _read(main: int, ours: set[int], own: tuple[int, int]) -> Ledger:
    # In no variable: with this function's own frame it would be a cycle that keeps the test's objects alive.
    frame = sys._current_frames()[main]
    wait = wait_of(frame)
    place, position = _place_and_position(frame)
    c10d = sys.modules.get(C10D)
    recorded, is_complete = recorded_calls()
    calls = recorded or []
    groups = known_groups()
    others = [*_others({main, *ours}), *_other_backends(c10d)]
    default: Any = c10d.GroupMember.WORLD if c10d is not None else None
    if default is not None and (default.rank(), default.size()) != own:
        # In a smaller or reordered world, torch's numbers mean other ranks than those of the runner.
        groups = {}
        others.append("a default group with other numbers of ranks")
    newest: dict[str, int] = {}
    for call in calls:
        newest[call.group] = call.generation
    return Ledger(
        is_recording=recorded is not None,
        is_complete=is_complete,
        groups=groups,
        calls=tuple(with_details(_kept(calls), groups)),
        last={call.group: call.number for call in calls if call.generation == newest[call.group]},
        waits=() if wait is None else (wait,),
        place=place,
        position=position,
        others=tuple(others),
        device_calls=tuple(with_details(_kept(device_calls())[-_MAX_DEVICE_CALLS:], groups)),
    )


def _kept(calls: list[Call]) -> list[Call]:
    return [call for number, call in enumerate(calls) if not call.is_done or number >= len(calls) - _LAST_CALLS]


def _other_backends(c10d: Any) -> Iterator[str]:
    """Groups whose calls the recorder does not show, or that end without a rank."""
    if c10d is None:
        return
    # A device can go on without its rank.
    hooked = [group for group in hooked_groups() if all(device.type == "cpu" for device in group._device_types)]
    others = {
        backend
        for group, backend in backend_of_groups(c10d)
        if group not in hooked and not all_declared(backend, lambda declared: declared.records_calls)
    }
    for backend in sorted(others):
        yield f"a group of the backend {backend[:MAX_TEXT]}"


def _place_and_position(frame: FrameType) -> tuple[str, int]:
    """The line of the test that a thread is in, such as "test_x.py:9", and all its frames as one number."""
    # By the whole folder: a user's own folder can be called torch, or dist_testing.
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    libraries = (*(os.path.join(os.path.dirname(file), "") for file in files if file), _FROZEN)
    own, installed, position = [], [], 0
    for inner in _frames(frame):
        position = hash((position, inner.f_code, inner.f_lasti))
        if not (file := inner.f_code.co_filename).startswith(libraries):
            place = f"{os.path.basename(file)}:{inner.f_lineno or 0}"
            if _INSTALLED in file:
                installed.append(place)
            elif not file.startswith(_STANDARD_LIBRARY):
                own.append(place)
    return next(iter(own or installed), "")[:MAX_TEXT], position & _LARGEST_POSITION


def _others(ours: set[int]) -> Iterator[str]:
    for ident in sys._current_frames().keys() - ours:
        # Without the lock of `threading`, which the test may hold.
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = "" if thread is None else str(thread.name)
        if not name.startswith(_OUR_THREADS):
            yield f"another thread ({name[:MAX_TEXT] or ident})"
    if children := child_processes():
        yield f"child processes ({', '.join(map(str, sorted(children)))})"[:MAX_TEXT]
    rpc = sys.modules.get("torch._C._distributed_rpc")
    if rpc is not None and rpc._is_current_rpc_agent_set():
        yield "an RPC agent"


def _frames(frame: FrameType) -> Iterator[FrameType]:
    """The frames of a thread, innermost first. Coroutines that wait are on no stack: they stand before their loop."""
    inner: FrameType | None = frame
    while inner is not None and not inner.f_code.co_filename.startswith(_LAUNCH):
        loop = inner.f_locals.get("self") if inner.f_code.co_name == "run_forever" else None
        if (asyncio := sys.modules.get("asyncio")) and isinstance(loop, asyncio.AbstractEventLoop):
            # The first task first: asyncio gives numbers as names.
            for task in sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name())):
                yield from reversed(list(_awaited(task.get_coro())))
        yield inner
        inner = inner.f_back


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """The frame of a coroutine, of the one that it awaits, and so on."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await
