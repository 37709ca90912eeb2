"""Leases GPUs to one process at a time: all that it asks for, or none.

    take a place in the machine's queue -> at its head, take GPUs as they become free -> with all of them, leave

A lease is an exclusive `flock` on the GPU's device node. It needs no writable folder, holds across sandboxes, users and
the actions of a remote worker, and ends with the processes that have it, however they end. Only the head of the queue
may take GPUs, so a process that asks for eight is not overtaken forever by those that ask for one, and two processes
never wait for each other's GPUs. Processes that may use different GPUs wait in the same queue.

Programs without this library ignore leases. Bazel's own count (`resources:gpu:<n>`) separates the tests of one Bazel;
leases separate users that Bazel does not know: another Bazel, another user, another worker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.core.ground.procfs import command_of, content_of
from dist_testing.gpus.gpu import Gpu, GpuError, LeaseTimeoutError

# Locks are tried in this interval, because a thread that waits for a lock cannot be stopped: it would take the lock
# after the wait was given up. Seconds.
_POLL_S = 0.05
# struct flock: type, whence, start, length, pid. A length of 0 reaches to the end of the file, even if it grows.
_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
# More nanoseconds than a machine runs.
_LAST = 1 << 62
_COMMAND_CHARS = 80
# The kernel's list leaves out locks of processes in other PID namespaces.
_UNSEEN = "a process that cannot be seen from here (another PID namespace, such as a sandbox)"
_NO_RIGHT = {errno.EACCES, errno.EPERM}
_NO_DEVICE = {errno.EIO, errno.ENODEV, errno.ENXIO}


class Place:
    """A place in the queue of processes that share only a file, from `Place.take` to `leave`: first come, first served.

    A place is one number: the moment at which its owner came, by the clock that all processes of the machine share. The
    owner locks the byte of that number. The head of the queue is the process that has locked all bytes before its own.

    The kernel releases the locks of a process when it ends, however it ends, so a crash needs no clean-up. Nothing is
    ever written to the file, so it can be a device node. The locks belong to an open file, not to a process
    (F_OFD_SETLK, Linux 3.15): a fork shares them.
    """

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._number = number

    @classmethod
    def take(cls, file: Path) -> Place:
        """Take a place at the end; an OSError if the file cannot be opened for both ways, or does not take locks."""
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            number, step = time.monotonic_ns(), 1
            while number < _LAST:
                with contextlib.suppress(BlockingIOError):
                    _lock_place(fd, fcntl.F_WRLCK, number, 1)
                    return cls(fd, number)
                # Another process has this number; or a faster one has become the head meanwhile; or the head is in a
                # container with another clock. The steps grow, so that few lead past it.
                number, step = max(time.monotonic_ns(), number + step), 2 * step
            raise OSError(errno.EBUSY, "another program has locked it to its end")
        except BaseException:
            _close_place(fd)
            raise

    def is_head(self) -> bool:
        """Whether all places before this one are left; if so, this is the head until it is left."""
        try:
            _lock_place(self._fd, fcntl.F_WRLCK, 0, self._number)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        """Leave the queue."""
        _close_place(self._fd)


def _lock_place(fd: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _close_place(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has the file open, too.
    with contextlib.suppress(OSError):
        _lock_place(fd, fcntl.F_UNLCK, 0, _TO_THE_END)
    os.close(fd)


def find_holders(gpus: Sequence[Gpu]) -> dict[Gpu, str]:
    """Return the processes that hold these GPUs, such as "process 12 (//tests:nccl)".

    A GPU that is free, or whose holder cannot be found, is not in the result. The words are the test target that the
    process runs, if its environment can be read, else its command line.
    """
    nodes: dict[str, Gpu] = {}
    for gpu in gpus:
        with contextlib.suppress(OSError):
            status = os.stat(gpu.node)
            nodes[f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"] = gpu
    holders: dict[Gpu, str] = {}
    for line in content_of("/proc/locks").decode("ascii").splitlines():
        # "1: FLOCK  ADVISORY  WRITE 24458 fe:00:2154522 0 EOF"; for a lock that waits, the second word is an arrow.
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and (held := nodes.get(words[5])) is not None:
            holders[held] = _holder(int(words[4]))
    for gpu in gpus:
        with contextlib.suppress(OSError):
            if gpu not in holders and is_locked(gpu.node):
                holders[gpu] = _UNSEEN
    return holders


def is_locked(node: Path) -> bool:
    """Whether any process holds a lease on a node, even one that cannot be seen from here."""
    fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A shared lock: two processes that look do not see each other. A process that takes the GPU in this moment
        # finds it locked, and tries again.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders_of(gpus: Sequence[Gpu]) -> str:
    """Return one line that names the holder of each GPU."""
    by_holder: dict[str, list[str]] = {}
    for gpu, holder in sorted(find_holders(gpus).items(), key=lambda item: item[0].index):
        by_holder.setdefault(holder, []).append(str(gpu.index))
    if not by_holder:
        return "no process has them at this moment"
    return "; ".join(f"GPU {', '.join(indices)}: {holder}" for holder, indices in by_holder.items())


def _holder(pid: int) -> str:
    if pid <= 0:
        return _UNSEEN
    for entry in content_of(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(b"TEST_TARGET="):
            return f"process {pid} ({entry.partition(b'=')[2].decode(errors='replace')})"
    if command := command_of(pid):
        return f"process {pid} ({command[:_COMMAND_CHARS]})"
    try:
        os.kill(pid, 0)
    except PermissionError:
        # A machine can hide what other users run (hidepid of /proc).
        return f"process {pid} (of another user)"
    except ProcessLookupError:
        pass
    return f"process {pid} (it has ended; a process that it started still has the lease)"


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs that no other process has, until `release` or the end of every process that has the descriptors."""

    gpus: tuple[Gpu, ...]  # in the order of the machine
    fds: tuple[int, ...]  # open device nodes that carry the locks; a process that inherits them keeps the lease alive

    def release(self, *, are_ranks_gone: bool = True) -> None:
        """Give the GPUs back; without `are_ranks_gone`, processes that have inherited the descriptors keep them."""
        for fd in self.fds:
            (_release if are_ranks_gone else os.close)(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def lease_gpus(
    count: int, pool: Sequence[Gpu], *, limit_s: float, on_wait: Callable[[str], None] = lambda _: None
) -> Lease:
    """Wait for `count` GPUs of the pool and take them. Nodes that cannot be opened are passed over.

    `on_wait` is called with one line that names the holders, if the GPUs are not free at once. A LeaseTimeoutError
    names the processes that kept them until the limit; a GpuError says that waiting does not help.
    """
    if not 0 < count <= len(pool):
        raise GpuError(
            f"{count} GPU(s) were asked for, and this process may use {len(pool)}.\n"
            "No amount of waiting changes that.\n"
            "Ask for fewer, run on a larger machine, or let CUDA_VISIBLE_DEVICES name more."
        )
    deadline_s = time.monotonic() + limit_s
    control = pool[0].control
    try:
        place = Place.take(control)
    except OSError as error:
        cause_and_way_out = _cause_and_way_out({error.errno})
        raise GpuError(f"GPUs cannot be leased: {control}: {error.strerror}.\n{cause_and_way_out}") from error
    with contextlib.ExitStack() as leaving:
        leaving.callback(place.leave)
        taking = _Taking(pool, place, count)
        leaving.callback(taking.close)
        was_behind = None
        while not taking.step():
            is_behind, got = taking.is_behind, len(taking.taken)
            if is_behind is not was_behind:
                where = " behind other processes" if is_behind else ""
                on_wait(f"waiting for {count - got} of {count} GPU(s){where}; {taking.whose()}")
                was_behind = is_behind
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                found = "other processes were first" if is_behind else f"{got} of them were free"
                raise LeaseTimeoutError(
                    f"{count} GPU(s) could not be had within {math.ceil(limit_s)} s: {found}; {taking.whose()}.\n"
                    "Other tests, or another user of this machine, kept them all that time.\n"
                    "Wait for these processes or stop them, run fewer GPU tests at once, or give the test more time."
                )
            time.sleep(min(_POLL_S, left_s))
        taken, taking.taken = taking.taken, {}
    chosen = sorted(taken, key=lambda gpu: gpu.index)
    return Lease(tuple(chosen), tuple(taken[gpu] for gpu in chosen))


class _Taking:
    """Takes GPUs one after the other, as they become free. `close` gives those back that are still in `taken`."""

    def __init__(self, pool: Sequence[Gpu], place: Place, count: int) -> None:
        self._pool = pool
        self._place = place
        self._count = count
        self.taken: dict[Gpu, int] = {}
        # Open, but locked by another process. Opening a node may wake the GPU up, so each is opened once.
        self._busy: dict[Gpu, int] = {}
        self._broken: dict[Gpu, OSError] = {}
        # Whether a process that came earlier still waits.
        self.is_behind = False

    def close(self) -> None:
        for fd in (*self.taken.values(), *self._busy.values()):
            _release(fd)

    def step(self) -> bool:
        """Take the GPUs that are free now. Return whether all are taken; a `GpuError` if they never can be."""
        self.is_behind = not self._place.is_head()
        for gpu in self._pool:
            if self.is_behind or len(self.taken) == self._count:
                break
            if gpu not in self.taken and gpu not in self._broken:
                self._try(gpu)
        usable_count = len(self._pool) - len(self._broken)
        if usable_count < self._count:
            raise GpuError(
                f"{self._count} GPU(s) were asked for, and {usable_count} of {len(self._pool)} can be leased: "
                f"{'; '.join(self._troubles())}.\n"
                f"{_cause_and_way_out({error.errno for error in self._broken.values()})}"
            )
        return len(self.taken) == self._count

    def whose(self) -> str:
        """Return who holds the GPUs that are not taken, in one line."""
        rest = [gpu for gpu in self._pool if gpu not in self.taken and gpu not in self._broken]
        return "; ".join([holders_of(rest), *self._troubles()])

    def _troubles(self) -> list[str]:
        return [f"{gpu} cannot be used: {error.strerror}" for gpu, error in self._broken.items()]

    def _try(self, gpu: Gpu) -> None:
        try:
            if gpu not in self._busy:
                self._busy[gpu] = os.open(gpu.node, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._busy[gpu], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken[gpu] = error
            return
        self.taken[gpu] = self._busy.pop(gpu)


def _release(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has it open, too, and would keep the lock.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _cause_and_way_out(numbers: set[int | None]) -> str:
    """Return the two lines that fit these error numbers."""
    if numbers <= _NO_RIGHT:
        return (
            "A lease is a lock on the device nodes, and this user, or its sandbox or container, may not open them.\n"
            "Give it access to the nodes, or let the job ask its scheduler for these GPUs."
        )
    if numbers <= _NO_DEVICE:
        return (
            "The driver has no working device there: it has fallen off the bus, or did not start.\n"
            "See the kernel's log, and reset or replace the GPU, or restart the driver."
        )
    if numbers <= {errno.ENOENT}:
        return (
            "A lease is a lock on the device nodes, and some are missing: a container or sandbox has only a part.\n"
            "Mount all of them, the driver's control node included."
        )
    return (
        "A lease is a lock on the device nodes, so this process has to be able to open and lock them.\n"
        "Repair the cause that the system names, or leave these GPUs out of CUDA_VISIBLE_DEVICES."
    )
