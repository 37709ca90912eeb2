"""Checks whether ranks may be forked from this process."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from dist_testing.core.ground.procfs import open_files

# CUDA's initialisation opens it; the management library does not.
_CUDA_NODE = "/dev/nvidia-uvm"


def spare_cuda() -> None:
    """Let `torch.cuda.is_available()` ask the management library from now on, unless the user has decided otherwise.

    Test files call that function at import. It would initialise CUDA, and a fork of such a process cannot use a GPU.
    """
    # $PYTORCH_NVML_BASED_CUDA_CHECK (library): 1: torch asks NVIDIA's management library whether there is a GPU, and
    # does not initialise CUDA, so that ranks can be forked (default: 1).
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def _openblas_threads() -> int:
    """Return the number of threads that the OpenBLAS pools of this process have.

    A fork is safe with them: OpenBLAS ends its pool in a pthread_atfork handler and restarts it on demand. numpy loads
    OpenBLAS, so most processes with torch have such a pool. In a process that has forked before, the number is too
    high, and could hide as many other threads. It is exact for the first fork server, which is forked before any test
    code runs, and `core.bazel.main` keeps the pool empty.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        # A line has five fields and a path, which may contain spaces.
        mapped = [line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "openblas" in line and "/" in line]
    pool = 0
    for path in {path.removesuffix(" (deleted)") for path in mapped}:
        try:
            # RTLD_NOLOAD, because another file may be at this path by now.
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        except OSError:
            # The file is not a loaded library, so its threads are not known to be safe.
            continue
        for symbol in (
            "openblas_get_num_threads",
            "openblas_get_num_threads64_",
            "scipy_openblas_get_num_threads64_",
            "scipy_openblas_get_num_threads",
        ):
            function = getattr(library, symbol, None)
            if function is not None:
                pool += int(function()) - 1
                break
    return pool


def unclean_reasons() -> list[str]:
    """Return why ranks must not be forked from this process; empty if they may.

    A fork copies the locks of other threads in their current state, and a second process cannot use a CUDA context or
    a process group.
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    reasons = [f"the thread {thread.name!r} is running" for thread in others]
    native = len(os.listdir("/proc/self/task")) - 1 - len(others)
    if (unknown := native - _openblas_threads()) > 0:
        reasons.append(f"{unknown} thread(s) of native code are running (did an import compute something?)")
    return [*reasons, *unshareable_reasons()]


def unshareable_reasons() -> list[str]:
    """Return what this process has that no process forked from it can use; empty if there is nothing."""
    reasons = []
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.cuda.is_initialized():
            reasons.append("CUDA is initialised")
        elif _CUDA_NODE in open_files().values():
            reasons.append("CUDA's driver is in use (did an import count the devices?)")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            reasons.append("a process group is initialised")
    return reasons
