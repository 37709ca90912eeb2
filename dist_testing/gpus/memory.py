"""Checks that the memory of leased GPUs is free before a world starts, and free again after it.

The driver needs some time to give back the memory of a process that has ended, and programs without a lease may use a
GPU as well. A test that starts too early runs out of memory, and its own report blames the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from dist_testing.gpus.gpu import Gpu, GpuError
from dist_testing.gpus.nvml import Nvml, NvmlGpu, NvmlMemory, lost_error

# Free share of a GPU's memory that a world waits for, and the least with which it starts.
_WANTED_FREE = 0.9
_NEEDED_FREE = 0.5
# If the use of a GPU has not fallen for this long, its users are expected to stay. Seconds.
_STEADY_S = 2.0
# The longest wait for memory before a world. Seconds.
_BEFORE_LIMIT_S = 30.0
# The longest wait until the driver has taken back the memory of ended processes. Seconds.
_AFTER_LIMIT_S = 10.0
# The driver's own use varies by less. Bytes.
_TOLERANCE_BYTES = 64 << 20
# The library has no event for memory that comes free, so it is asked in this interval. Seconds.
_POLL_S = 0.05
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Used memory of a GPU, in bytes."""

    used: int  # by all processes together
    by_process: Mapping[int, int | None]  # process number to its part; None where the driver does not report it


def wait_for_memory(
    nvml: Nvml,
    gpus: Sequence[Gpu],
    *,
    limit_s: float,
    on_wait: Callable[[str], None],
    settled: dict[Gpu, int] | None = None,
) -> dict[Gpu, MemoryUse]:
    """Wait until the memory of leased GPUs is free, or it is clear that it will not be; return the use that remains.

    The wait goes on only while the use falls: a process has ended, and the driver takes its memory back. If the use
    stays, or goes up and down, its process is expected to stay. A GpuError says that less than half of the memory of a
    GPU is free in the end, or that a GPU is gone.

    It lasts at most `limit_s` seconds, and half a minute. `on_wait` is called with one line, if a wait begins.
    `settled` has the bytes of a GPU that are known to stay in use, for which no world waits again.
    """
    deadline_s = time.monotonic() + min(limit_s, _BEFORE_LIMIT_S)
    shown = _by_gpu(nvml, gpus)
    if nvml.lost_count and (missing := [gpu for gpu in gpus if gpu not in shown]):
        raise lost_error(", ".join(map(str, missing)))
    settled = {} if settled is None else settled
    lowest = {gpu: its.used for gpu, its in _memory(nvml, shown).items()}
    known = {gpu: shown[gpu] for gpu in lowest}
    fell_s = time.monotonic()
    has_reported = False
    while True:
        memory = _memory(nvml, known)
        busy = [gpu for gpu, its in memory.items() if its.free_share < _WANTED_FREE]
        if not busy:
            break
        if any(its.used < lowest[gpu] - _TOLERANCE_BYTES for gpu, its in memory.items()):
            lowest |= {gpu: min(its.used, lowest[gpu]) for gpu, its in memory.items()}
            fell_s = time.monotonic()
        expected = [
            gpu
            for gpu in busy
            if memory[gpu].free_share < _NEEDED_FREE or memory[gpu].used > settled.get(gpu, 0) + _TOLERANCE_BYTES
        ]
        now_s = time.monotonic()
        if is_steady := now_s - fell_s >= _STEADY_S:
            settled |= {gpu: memory[gpu].used for gpu in expected}
        if is_steady or not expected or now_s >= deadline_s:
            break
        if not has_reported:
            on_wait(f"waiting for memory; {_users(nvml, known, memory, expected)}")
            has_reported = True
        time.sleep(_POLL_S)
    for gpu in known:
        if gpu not in busy:
            settled.pop(gpu, None)
    if full := [gpu for gpu in busy if memory[gpu].free_share < _NEEDED_FREE]:
        raise GpuError(
            f"{_users(nvml, known, memory, full)}: less than half of the memory is free.\n"
            "A program without a lease uses the GPU, or the driver has not taken back the memory of an ended one.\n"
            "Stop that program, give it another GPU, or leave this GPU out of CUDA_VISIBLE_DEVICES."
        )
    # The total comes first: memory of a process that ends in between would otherwise count as left behind later.
    return {gpu: MemoryUse(its.used, nvml.processes(known[gpu]) or {}) for gpu, its in memory.items()}


def memory_left(nvml: Nvml, before: Mapping[Gpu, MemoryUse], *, started_s: float) -> list[str]:
    """Return the memory that a world has not given back after its end: one text for each GPU that the driver reports.

    `before` is the result of `wait_for_memory`. Memory of processes that are older than `started_s`, in seconds since
    the epoch, is not counted. A GpuError says that a GPU is gone.
    """
    known = _by_gpu(nvml, list(before))
    # Without an answer for the number of GPUs, a missing GPU is not known to be gone.
    if (missing := [gpu for gpu in before if gpu not in known]) and nvml.gpu_count() is not None:
        raise lost_error(", ".join(map(str, missing)), is_reported=nvml.lost_count > 0)
    deadline_s = time.monotonic() + _AFTER_LIMIT_S
    while True:
        more = {
            gpu: more
            for gpu, its in _memory(nvml, known).items()
            if (more := _grown(before[gpu], its.used, nvml.processes(known[gpu]), started_s)) > _TOLERANCE_BYTES
        }
        if not more or time.monotonic() >= deadline_s:
            break
        time.sleep(_POLL_S)
    return [
        f"GPU {gpu.index}: {size / _GIB:.1f} GiB more than before ({_names(nvml.processes(known[gpu]))})"
        for gpu, size in more.items()
    ]


def _by_gpu(nvml: Nvml, gpus: Sequence[Gpu]) -> dict[Gpu, NvmlGpu]:
    by_minor = {gpu.minor: gpu for gpu in nvml.gpus()}
    return {gpu: by_minor[gpu.minor] for gpu in gpus if gpu.minor in by_minor}


def _memory(nvml: Nvml, known: Mapping[Gpu, NvmlGpu]) -> dict[Gpu, NvmlMemory]:
    return {gpu: memory for gpu, its in known.items() if (memory := nvml.memory(its)) is not None}


def _grown(before: MemoryUse, used: int, processes: Mapping[int, int | None] | None, started_s: float) -> int:
    """Bytes in use since `before`, without those of processes that are older than the world."""
    theirs = [size for pid, size in (processes or {}).items() if _is_older(pid, before, started_s)]
    theirs_before = before.by_process.values()
    if None in theirs or None in theirs_before or (processes is None and theirs_before):
        # The parts of older processes are unknown.
        return 0
    return (used - sum(size or 0 for size in theirs)) - (before.used - sum(size or 0 for size in theirs_before))


def _is_older(pid: int, before: MemoryUse, started_s: float) -> bool:
    try:
        return float(psutil.Process(pid).create_time()) < started_s
    except psutil.Error:
        # It is in another PID namespace, or has just ended.
        return pid in before.by_process


def _users(nvml: Nvml, known: Mapping[Gpu, NvmlGpu], memory: Mapping[Gpu, NvmlMemory], gpus: Sequence[Gpu]) -> str:
    return "; ".join(
        f"GPU {gpu.index} has {memory[gpu].free_share:.0%} of its memory free ({_names(nvml.processes(known[gpu]))})"
        for gpu in gpus
    )


def _names(processes: Mapping[int, int | None] | None) -> str:
    names = []
    for pid, used in (processes or {}).items():
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            name = "in another PID namespace, or ended"
        size = f", {used / _GIB:.1f} GiB" if used is not None else ""
        names.append(f"process {pid}: {name}{size}")
    return "; ".join(names) or "the driver does not report the process"
