"""The environment that the runner gives to all ranks of a world."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping

__all__ = ["cpu_count", "rank_env", "threads_per_rank"]

# Bazel's test protocol (Test encyclopedia, "Initial conditions"). The runner alone speaks it: a rank that inherits it
# would write the runner's XML file or shard its own cases.
_PROTOCOL = (
    "BAZEL_TEST",
    "COVERAGE_DIR",
    "COVERAGE_MANIFEST",
    "COVERAGE_OUTPUT_FILE",
    "TESTBRIDGE_TEST_ONLY",
    "TESTBRIDGE_TEST_RUNNER_FAIL_FAST",
    "TEST_INFRASTRUCTURE_FAILURE_FILE",
    "TEST_LOGSPLITTER_OUTPUT_FILE",
    "TEST_PREMATURE_EXIT_FILE",
    "TEST_SHARD_INDEX",
    "TEST_SHARD_STATUS_FILE",
    "TEST_TOTAL_SHARDS",
    "TEST_UNDECLARED_OUTPUTS_ANNOTATIONS_DIR",
    "TEST_UNDECLARED_OUTPUTS_MANIFEST",
    "TEST_UNUSED_RUNFILES_LOG_FILE",
    "TEST_WARNINGS_OUTPUT_FILE",
    "XML_OUTPUT_FILE",
)

# Collectives that torch's flight recorder keeps on each rank. It keeps the newest; a hang is told from the last ones.
_RECORDED_CALLS = 256

# What decides how many threads torch starts; a user who set one of them has decided.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Linux's name for the interface.
_LOOPBACK = "lo"

# Where compilers keep what they made. Per target, not per rank: the ranks of one test compile the same things.
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}


def cpu_count() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(world_size: int, env: Mapping[str, str] = os.environ) -> int:
    """Intra-op threads of each rank: what the user has decided, else a fair share of the CPUs.

    Returns:
        At least 1; 0 if torch is not there to be told.
    """
    chosen = env.get("OMP_NUM_THREADS", "")
    if re.fullmatch(r"[1-9][0-9]{0,5}", chosen):
        return int(chosen)
    if any(name in env for name in _THREAD_VARIABLES):
        # Something that only the libraries understand; torch in this process has asked them.
        torch = sys.modules.get("torch")
        return torch.get_num_threads() if torch is not None else 0
    return max(1, cpu_count() // world_size)


def rank_env(
    env: Mapping[str, str],
    *,
    world_size: int,
    backend_env: Mapping[str, str],
    scratch: str | None,
    temp: str,
    device_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The runner's environment as of now, made fit for ranks.

    Args:
        env: The runner's. Whatever the user has set stays.
        world_size: Ranks that share the CPUs.
        backend_env: Defaults of the backend.
        scratch: Folder for compile caches, under `TEST_TMPDIR`; None leaves them where they are.
        temp: The world's own folder for temporary files, so that they go when it goes.
        device_env: What makes the ranks see their devices, whatever the user has set.
    """
    result = {name: value for name, value in env.items() if name not in _PROTOCOL}
    result |= device_env or {}
    result["TMPDIR"] = temp
    if _LOOPBACK in (name for _, name in socket.if_nameindex()):
        # Left alone, gloo asks for the address of the hostname, which in a sandbox or on a laptop may not exist.
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            result.setdefault(name, _LOOPBACK)
    if not any(name in env for name in _THREAD_VARIABLES):
        for name in (*_THREAD_VARIABLES, "OPENBLAS_NUM_THREADS"):
            result.setdefault(name, str(threads_per_rank(world_size, env)))
    for name, value in backend_env.items():
        result.setdefault(name, value)
    result.setdefault("TORCH_FR_BUFFER_SIZE", str(_RECORDED_CALLS))
    if scratch is not None:
        for name, folder in _CACHES.items():
            result.setdefault(name, os.path.join(scratch, "cache", folder))
        # torch asks getpass for a name when it makes up a cache path; a sandbox may have no passwd entry.
        result.setdefault("USER", "dist_testing")
    return result
