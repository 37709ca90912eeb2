"""Makes the environment of all ranks of a world."""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping, MutableMapping

from dist_testing.core.ground.layout import INTERFACE_VARIABLES

# Bazel's test protocol (Test encyclopedia, "Initial conditions"). Only the runner follows it: a rank that inherits
# it would write the runner's XML file or shard its own cases.
# $BAZEL_TEST, $COVERAGE_OUTPUT_FILE, $TEST_LOGSPLITTER_OUTPUT_FILE, $TEST_UNDECLARED_OUTPUTS_ANNOTATIONS_DIR,
# $TEST_UNDECLARED_OUTPUTS_MANIFEST, $TEST_UNUSED_RUNFILES_LOG_FILE (Bazel): the library does not read them, and removes
# them from the environment of ranks, with the other variables of the test protocol.
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

# $TORCH_FR_BUFFER_SIZE (library): number of calls that torch's flight recorder keeps on each rank. Reports of hangs
# read the newest ones (default: 256).
_RECORDED_CALLS = 256

# $OMP_NUM_THREADS, $MKL_NUM_THREADS, $OPENBLAS_NUM_THREADS (library): number of threads of each rank. If you set one of
# the first two, the library sets none of the three (default: an equal share of the CPUs).
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Linux's name of the loopback interface.
_LOOPBACK = "lo"

# $TORCHINDUCTOR_CACHE_DIR, $TRITON_CACHE_DIR, $TORCH_EXTENSIONS_DIR (library): under Bazel: caches of compilers, one
# for all ranks of a target, which compile the same code (default: directories below TEST_TMPDIR).
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}


def show_cpp_stacks(env: MutableMapping[str, str]) -> None:
    """Have errors of native code contain the native stack, as with torch's own classes, unless the user has decided.

    torch reads the variables while it is imported. The stack has the names of functions: by default torch also looks up
    lines of source files, in another program, which takes seconds to minutes for the first error of a process.
    """
    # $TORCH_SHOW_CPP_STACKTRACES, $TORCH_DISABLE_ADDR2LINE (library): errors of native code contain the native stack,
    # without lines of source files (default: 1).
    env.setdefault("TORCH_SHOW_CPP_STACKTRACES", "1")
    env.setdefault("TORCH_DISABLE_ADDR2LINE", "1")


def cpu_count() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(world_size: int, env: Mapping[str, str] = os.environ) -> int:
    """Return the number of intra-op threads of each rank: the user's value, else an equal share of the CPUs.

    It is 0 if the value is unknown because this process has not loaded torch.
    """
    chosen = env.get("OMP_NUM_THREADS", "")
    if re.fullmatch(r"[1-9][0-9]{0,5}", chosen):
        return int(chosen)
    if any(name in env for name in _THREAD_VARIABLES):
        # Only the libraries understand the value; torch in this process has read it from them.
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
    """Return the environment of ranks, made from the runner's, `env`. Values that the user has set stay.

    `world_size` is the number of ranks that share the CPUs, `backend_env` has the defaults of the backend, `scratch` is
    the folder for compile caches, None for the compilers' defaults, and `temp` the world's folder for temporary files.
    `device_env` makes the leased devices visible, and overrides the user's values.
    """
    result = {name: value for name, value in env.items() if name not in _PROTOCOL}
    result |= device_env or {}
    # $TMPDIR (library): directory of the world for temporary files. It replaces your value; the library removes it.
    result["TMPDIR"] = temp
    if _LOOPBACK in (name for _, name in socket.if_nameindex()):
        # By default gloo looks up the address of the hostname, which may not exist in a sandbox or on a laptop.
        for name in INTERFACE_VARIABLES:
            result.setdefault(name, _LOOPBACK)
    if not any(name in env for name in _THREAD_VARIABLES):
        for name in (*_THREAD_VARIABLES, "OPENBLAS_NUM_THREADS"):
            result.setdefault(name, str(threads_per_rank(world_size, env)))
    for name, value in backend_env.items():
        result.setdefault(name, value)
    result.setdefault("TORCH_FR_BUFFER_SIZE", str(_RECORDED_CALLS))
    # torch asks DNS for the name of 127.0.0.1 at each connection to a TCPStore, for a text that it seldom shows. By
    # default the C library waits 5 s for an answer that is lost.
    # $RES_OPTIONS (library): options of the C library's resolver (default: timeout:1 attempts:2).
    result.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
    show_cpp_stacks(result)
    # $LIBC_FATAL_STDERR_ (library): has older C libraries write their last error to the output of the rank (default:
    # 1).
    result.setdefault("LIBC_FATAL_STDERR_", "1")
    if scratch is not None:
        for name, folder in _CACHES.items():
            if _is_torchs_own_choice(result.get(name, "")):
                del result[name]
            result.setdefault(name, os.path.join(scratch, "cache", folder))
        # $USER (library): under Bazel: torch makes a cache path from the user name, and a sandbox may have no entry in
        # passwd (default: dist_testing).
        result.setdefault("USER", "dist_testing")
    return result


def _is_torchs_own_choice(folder: str) -> bool:
    """Return whether torch, and not the user, has chosen the folder of a cache.

    torch's CUDA builds put their default into the environment of a runner that imports `torch._dynamo`.
    """
    place, name = os.path.split(folder)
    return name.startswith("torchinductor_") and place == tempfile.gettempdir()
