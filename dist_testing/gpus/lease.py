"""GPUs that are one process's own for a while: all that it asked for, or none.

    a place in the lanes of the pool's GPUs -> head of a lane takes its GPU -> all there: lease, and out of the queue

A lease is an exclusive `flock` on the GPU's device node. It needs no folder that anybody may write to, holds across
sandboxes, users and the actions of a remote worker, and ends with the processes that have it, however they end. A GPU
is taken by the head of its lane alone. So of two processes that may use the same GPU the one that came first has it
first, those who may not use the same ones do not wait for each other, and who asks for eight is not passed by for
ever by those who ask for one. Nobody waits in a circle: places are in one order in all lanes, and the first of all
waits for leases alone.

Whoever uses the GPUs without this library does not take part; Bazel's own count (`resources:gpu:<n>`) keeps its tests
apart, and this keeps apart what Bazel does not know of: another Bazel, another user, another worker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dist_testing.errors import GpuError, LeaseTimeoutError
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.holders import holders_of
from dist_testing.gpus.queue import RankInfo

__all__ = ["Lease", "lease_gpus"]

# A wait for a lock can be given up only by the process that waits, and a thread that stays behind in it would take the
# lock for nobody, so locks are tried again and again. Seconds.
_POLL_S = 0.05

_NO_RIGHT = {errno.EACCES, errno.EPERM}
_NO_DEVICE = {errno.EIO, errno.ENODEV, errno.ENXIO}


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs that nobody else has, until `release` or the end of every process that has the descriptors.

    Attributes:
        gpus: Which, in the order of the machine.
        fds: Open device nodes that carry the locks. A process that inherits them keeps the lease alive.
        waited_s: How long it took to get them.
    """

    gpus: tuple[Gpu, ...]
    fds: tuple[int, ...]
    waited_s: float

    def release(self) -> None:
        """Give the GPUs back, also for processes that have inherited the descriptors."""
        for fd in self.fds:
            _release(fd)

    def abandon(self) -> None:
        """Let go here alone: whoever has inherited the descriptors keeps the GPUs, as long as it lives."""
        for fd in self.fds:
            os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lease_gpus(
    count: int, pool: Sequence[Gpu], *, limit_s: float, on_wait: Callable[[str], None] = lambda _: None
) -> Lease:
    """Wait for `count` GPUs of the pool and take them. Nodes that cannot be opened are passed over.

    Args:
        count: At least 1.
        pool: Where they may come from: the GPUs that this process may use.
        limit_s: How long to wait, in seconds.
        on_wait: Called with one line that says who has what, if they cannot be had at once.

    Raises:
        GpuError: If the pool is too small, or the nodes of too many cannot be opened.
        LeaseTimeoutError: If others kept them until the limit; the text names them.
    """
    if not 0 < count <= len(pool):
        raise GpuError(
            f"{count} GPU(s) were asked for, and this process may use {len(pool)}.\n"
            "No amount of waiting changes that.\n"
            "Ask for fewer, run on a larger machine, or let CUDA_VISIBLE_DEVICES name more."
        )
    started_s = time.monotonic()
    deadline_s = started_s + limit_s
    control = pool[0].control
    try:
        place = RankInfo.take(control, [gpu.minor for gpu in pool])
    except OSError as error:
        raise _cannot_queue(control, error) from error
    with contextlib.ExitStack() as leaving:
        leaving.callback(place.leave)
        taking = leaving.enter_context(_Taking(pool, place, count))
        was_behind = None
        while not taking.step():
            if taking.is_behind is not was_behind:
                on_wait(f"waiting for {taking.lacking()}; {taking.whose()}")
                was_behind = taking.is_behind
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _timed_out(count, limit_s, taking)
            time.sleep(min(_POLL_S, left_s))
        taken = taking.keep()
    chosen = sorted(taken, key=lambda gpu: gpu.index)
    return Lease(tuple(chosen), tuple(taken[gpu] for gpu in chosen), time.monotonic() - started_s)


class _Taking:
    """GPUs that are being taken, one after the other, as they become free."""

    def __init__(self, pool: Sequence[Gpu], place: RankInfo, count: int) -> None:
        self._pool = pool
        self._place = place
        self._count = count
        self._taken: dict[Gpu, int] = {}
        # Open, and somebody else's. Opening a node may wake the GPU up, so it is done once.
        self._busy: dict[Gpu, int] = {}
        self._broken: dict[Gpu, OSError] = {}
        # Whether somebody who came earlier may still take one of them.
        self.is_behind = False

    def __enter__(self) -> _Taking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in (*self._taken.values(), *self._busy.values()):
            _release(fd)

    def step(self) -> bool:
        """Take what can be had now.

        Returns:
            Whether that is all.

        Raises:
            GpuError: If it never will be.
        """
        self.is_behind = False
        for gpu in self._pool:
            if len(self._taken) == self._count:
                return True
            if gpu in self._taken or gpu in self._broken:
                continue
            if self._place.is_head(gpu.minor):
                self._try(gpu)
            else:
                self.is_behind = True
        if len(self._pool) - len(self._broken) < self._count:
            raise _broken(self._count, len(self._pool), self._broken)
        return len(self._taken) == self._count

    def lacking(self) -> str:
        """What is lacking."""
        return f"{self._count - len(self._taken)} of {self._count} GPU(s){' behind others' if self.is_behind else ''}"

    def got(self) -> str:
        """How far it has come."""
        return "others were first" if self.is_behind else f"{len(self._taken)} of them were free"

    def whose(self) -> str:
        """Who has those that are lacking, and which will never do."""
        rest = [gpu for gpu in self._pool if gpu not in self._taken and gpu not in self._broken]
        return "; ".join([holders_of(rest), *(_trouble(gpu, error) for gpu, error in self._broken.items())])

    def keep(self) -> Mapping[Gpu, int]:
        """What was taken becomes the caller's."""
        kept, self._taken = self._taken, {}
        return kept

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
        self._taken[gpu] = self._busy.pop(gpu)


def _release(fd: int) -> None:
    # Not by closing alone: a child that was forked meanwhile has it open, and would keep the lock.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _trouble(gpu: Gpu, error: OSError) -> str:
    return f"GPU {gpu.index} ({gpu.node}) cannot be used: {error.strerror}"


def _broken(count: int, size: int, broken: Mapping[Gpu, OSError]) -> GpuError:
    troubles = "; ".join(_trouble(gpu, error) for gpu, error in broken.items())
    return GpuError(
        f"{count} GPU(s) were asked for, and {size - len(broken)} of {size} can be leased: {troubles}.\n"
        + _cause_and_way_out({error.errno for error in broken.values()})
    )


def _timed_out(count: int, limit_s: float, taking: _Taking) -> LeaseTimeoutError:
    return LeaseTimeoutError(
        f"{count} GPU(s) could not be had within {math.ceil(limit_s)} s: {taking.got()}; {taking.whose()}.\n"
        "Other tests, or another user of this machine, kept them all that time.\n"
        "Wait for them or stop them, run fewer GPU tests at once, or give the test more time."
    )


def _cannot_queue(node: Path, error: OSError) -> GpuError:
    return GpuError(f"GPUs cannot be leased: {node}: {error.strerror}.\n" + _cause_and_way_out({error.errno}))


def _cause_and_way_out(numbers: set[int | None]) -> str:
    """Two lines, by the errors' numbers."""
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
            "A lease is a lock on the device nodes, and some are not there: a container or sandbox got part of them.\n"
            "Mount all of them, the driver's control node included."
        )
    return (
        "A lease is a lock on the device nodes, so this process has to be able to open and lock them.\n"
        "Repair what the system says of them, or leave them out of the GPUs that this process may use."
    )
