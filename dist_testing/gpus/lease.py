"""GPUs that are one process's own for a while: all that it asked for, or none.

    queue on the driver's control node -> head takes free GPUs, waits for the rest -> lease -> next head

A lease is an exclusive `flock` on the GPU's device node. It needs no folder that anybody may write to, holds across
sandboxes, users and the actions of a remote worker, and ends with the processes that have it, however they end. Only
the head of the queue takes GPUs, so two processes never hold a part each of what both need, and who asks for eight is
not passed by for ever by those who ask for one.

Whoever uses the GPUs without this library does not take part; Bazel's own count (`resources:gpu:<n>`) keeps its tests
apart, and this keeps apart what Bazel does not know of: another Bazel, another user, another worker.
"""

from __future__ import annotations

import fcntl
import math
import os
import queue as queues
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dist_testing.errors import GpuError, LeaseTimeoutError
from dist_testing.gpus.devices import Gpu
from dist_testing.gpus.holders import holders_of
from dist_testing.gpus.queue import Place

__all__ = ["Lease", "control_node", "lease_gpus"]

# The driver makes it for every process and every container that has a GPU.
_CONTROL_NODE = "nvidiactl"


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
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

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


def control_node(gpu: Gpu) -> Path:
    """The node on which processes queue for GPUs like this one."""
    return gpu.node.parent / _CONTROL_NODE


def lease_gpus(
    count: int, pool: Sequence[Gpu], *, limit_s: float, on_wait: Callable[[str], None] = lambda _: None
) -> Lease:
    """Wait for `count` GPUs of the pool and take them.

    Args:
        count: At least 1.
        pool: Where they may come from: the GPUs that this process may use.
        limit_s: How long to wait, in seconds.
        on_wait: Called with one line that says who has what, if they cannot be had at once.

    Raises:
        GpuError: If the pool is too small, or the device nodes cannot be opened.
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
    try:
        place = Place.take(control_node(pool[0]))
    except OSError as error:
        raise _cannot_open(control_node(pool[0]), error) from error
    taking = _Taking(pool)
    try:
        if not place.is_head():
            on_wait(f"waiting for {count} GPU(s) behind others; {holders_of(pool)}")
            if not place.wait_head(deadline_s):
                raise _timed_out(count, limit_s, pool, "others were first")
        taking.take_free(count)
        if taking.missing(count):
            on_wait(f"waiting for {taking.missing(count)} of {count} GPU(s); {holders_of(pool)}")
            if not taking.wait(count, deadline_s):
                raise _timed_out(count, limit_s, pool, f"{len(taking.taken)} of them were free")
        fds = taking.keep(count)
    except OSError as error:
        raise _cannot_open(pool[0].node, error) from error
    finally:
        taking.close()
        place.leave()
    chosen = sorted(fds, key=lambda gpu: gpu.index)
    return Lease(tuple(chosen), tuple(fds[gpu] for gpu in chosen), time.monotonic() - started_s)


class _Taking:
    """The head of the queue, at work."""

    def __init__(self, pool: Sequence[Gpu]) -> None:
        self._pool = pool
        self.taken: dict[Gpu, int] = {}
        self._granted: queues.SimpleQueue[tuple[Gpu, int] | OSError] = queues.SimpleQueue()
        self._guard = threading.Lock()
        self._is_closed = False

    def missing(self, count: int) -> int:
        return count - len(self.taken)

    def take_free(self, count: int) -> None:
        for gpu in self._pool:
            if not self.missing(count):
                return
            fd = os.open(gpu.node, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
            else:
                self.taken[gpu] = fd

    def wait(self, count: int, deadline_s: float) -> bool:
        """Wait for as many more as are missing, whichever become free first."""
        for gpu in self._pool:
            if gpu not in self.taken:
                threading.Thread(target=self._wait_one, args=(gpu,), name="gpu-lease", daemon=True).start()
        while self.missing(count):
            try:
                granted = self._granted.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queues.Empty:
                return False
            if isinstance(granted, OSError):
                raise granted
            gpu, fd = granted
            self.taken[gpu] = fd
        return True

    def _wait_one(self, gpu: Gpu) -> None:
        try:
            fd = os.open(gpu.node, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._granted.put(error)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            os.close(fd)
            self._granted.put(error)
            return
        with self._guard:
            if not self._is_closed:
                self._granted.put((gpu, fd))
                return
        # The kernel could not be told that nobody waits any more.
        os.close(fd)

    def keep(self, count: int) -> dict[Gpu, int]:
        """What was taken becomes the caller's."""
        kept, self.taken = self.taken, {}
        assert len(kept) == count
        return kept

    def close(self) -> None:
        """Give back whatever nobody has taken over."""
        with self._guard:
            self._is_closed = True
        while not self._granted.empty():
            granted = self._granted.get()
            if not isinstance(granted, OSError):
                os.close(granted[1])
        for fd in self.taken.values():
            os.close(fd)
        self.taken = {}


def _cannot_open(node: Path, error: OSError) -> GpuError:
    return GpuError(
        f"GPUs cannot be leased: {error.filename or node}: {error.strerror}.\n"
        "A lease is a lock on the device nodes, so this process has to be able to open them.\n"
        "Give this user access to the nodes; under a sandbox or in a container, mount all of them."
    )


def _timed_out(count: int, limit_s: float, pool: Sequence[Gpu], why: str) -> LeaseTimeoutError:
    return LeaseTimeoutError(
        f"{count} GPU(s) could not be had within {math.ceil(limit_s)} s: {why}; {holders_of(pool)}.\n"
        "Other tests, or another user of this machine, kept them all that time.\n"
        "Wait for them or stop them, run fewer GPU tests at once, or give the test more time."
    )
