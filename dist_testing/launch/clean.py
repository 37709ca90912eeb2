"""Is this process fit to fork ranks from?"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading

__all__ = ["spare_cuda", "unclean_reasons"]

# Opened by CUDA's initialisation, and not by the management library.
_CUDA_NODE = "/dev/nvidia-uvm"


def spare_cuda() -> None:
    """From now on, have `torch.cuda.is_available()` ask the management library, unless the user has decided.

    Test files call it at import. It would initialise CUDA otherwise, and no fork of such a process can use a GPU.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def _is_cuda_in_use() -> bool:
    for fd in os.listdir("/proc/self/fd"):
        # The one that the list was read from is closed.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{fd}") == _CUDA_NODE:
                return True
    return False


def _openblas_threads() -> int:
    """Threads of the OpenBLAS pools in this process.

    They are safe to fork with: OpenBLAS ends its pool in a pthread_atfork handler and starts it again on demand. numpy
    loads such a library, so most processes with torch have it. (So in a process that has forked before, this is more
    than there are, and could hide as many threads of others. The first template, made before any test code runs, is
    judged exactly; the Bazel main keeps the pool empty.)
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        # Five fields, and a path that may have spaces in it.
        mapped = [line.rstrip("\n").split(maxsplit=5)[5] for line in maps if "openblas" in line and "/" in line]
    pool = 0
    for path in {path.removesuffix(" (deleted)") for path in mapped}:
        try:
            # Nothing new: at this path there may be another file by now.
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        except OSError:
            # No library; or one that cannot be asked, so its threads are not known to be safe.
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
    """Why ranks must not be forked from this process; empty when they may be.

    A thread's locks are copied by fork in whatever state they are in, and a CUDA context or a process group cannot
    be used by a second process.
    """
    reasons = []
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    reasons += [f"the thread {thread.name!r} is running" for thread in others]
    native = len(os.listdir("/proc/self/task")) - 1 - len(others)
    if (unknown := native - _openblas_threads()) > 0:
        reasons.append(f"{unknown} thread(s) of native code are running (a pool that an import started by computing?)")
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.cuda.is_initialized():
            reasons.append("CUDA is initialised")
        elif _is_cuda_in_use():
            reasons.append("CUDA's driver is in use (an import that counts devices?)")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            reasons.append("a process group is initialised")
    return reasons
