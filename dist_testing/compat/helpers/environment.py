"""A test's surroundings: environment variables, time limits, shared folders, stores, gloo devices, and transports."""

from __future__ import annotations

import functools
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore, set_debug_level_from_env

from dist_testing.core.ground.environment import environment
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import LOOPBACK

__all__ = ["cleanup_temp_dir", "core_dumps_disabled", "create_device", "create_tcp_store", "get_timeout", "has_efa"]
__all__ += ["initialize_temp_directories", "tp_transports", "with_dist_debug_levels", "with_nccl_blocking_wait"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# $DISTRIBUTED_TESTS_DEFAULT_TIMEOUT (user): with torch-style test files: limit of each test in seconds (default: 300).
_TIMEOUT_VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"

_temp_dirs: list[tempfile.TemporaryDirectory[str]] = []


def with_nccl_blocking_wait(func: _Function) -> _Function:
    """Run a test with `TORCH_NCCL_BLOCKING_WAIT` set and `TORCH_NCCL_ASYNC_ERROR_HANDLING` not set.

    Both variables are restored afterwards, also when the test fails.
    """
    return environment({"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": None})(func)


@contextmanager
def core_dumps_disabled() -> Iterator[None]:
    """Let a failed assertion on a device raise an error on ROCm, too, instead of ending the process.

    HIP ends a process after a fault of its GPU if core files are allowed, so that it can write one. Wait for the device
    inside of the block: the error comes only then. The limit of core files is restored afterwards.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def with_dist_debug_levels(levels: Iterable[str]) -> Callable[[_Function], _Function]:
    """Run a test once under each debug level of torch.distributed.

    A barrier follows each run while there is a default group. The earlier level is restored afterwards, also when the
    test fails.

    Args:
        levels: Values of `TORCH_DISTRIBUTED_DEBUG`: "OFF", "INFO", "DETAIL".
    """
    every = list(levels)

    def decorator(func: _Function) -> _Function:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = None
            try:
                for level in every:
                    with environment({"TORCH_DISTRIBUTED_DEBUG": level}):
                        set_debug_level_from_env()
                        result = func(*args, **kwargs)
                        if dist.is_initialized():
                            dist.barrier()
            finally:
                set_debug_level_from_env()
            return result

        return cast(_Function, wrapper)

    return decorator


def default_timeout() -> int:
    """Return `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT`, by default 300 s; under ThreadSanitizer 500 s."""
    if os.environ.get("PYTORCH_TEST_WITH_TSAN", "0") == "1":
        return 500
    given = os.environ.get(_TIMEOUT_VARIABLE, "300")
    if not (given.isascii() and given.isdecimal() and int(given)):
        raise UsageError(
            f"{_TIMEOUT_VARIABLE} = {given!r}; expected a number of seconds, at least 1.\n"
            "It is the limit of each test that sets none of its own.\n"
            f"Correct the variable, or unset it for 300."
        )
    return int(given)


# Method name to seconds. Tests may add to it.
TIMEOUT_OVERRIDE = {"test_ddp_uneven_inputs": 400, "test_DistributedDataParallel": 500}


def get_timeout(test_id: str) -> int:
    """Return the limit of a test in seconds: its entry in `TIMEOUT_OVERRIDE`, else the default.

    Args:
        test_id: `unittest.TestCase.id()`; its last part is the method's name.

    Raises:
        UsageError: If `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT` is not a number of seconds.
    """
    limit = TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2])
    return limit if limit is not None else default_timeout()


def initialize_temp_directories(init_method: str | None = None) -> None:
    """Make a temporary folder with `barrier`, `test_dir` and `init_dir`, for processes that a test starts itself.

    The variable `TEMP_DIR` names the folder, and `INIT_METHOD` a rendezvous.

    Args:
        init_method: Value of `INIT_METHOD`; default: a file in `init_dir`.
    """
    folder = tempfile.TemporaryDirectory()
    _temp_dirs.append(folder)
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder.name, name))
    os.environ["TEMP_DIR"] = folder.name
    os.environ["INIT_METHOD"] = init_method or f"file://{folder.name}/init_dir/shared_init_file"


def cleanup_temp_dir() -> None:
    """Remove the folders of all calls of `initialize_temp_directories`."""
    while _temp_dirs:
        _temp_dirs.pop().cleanup()


def current_temp_dir() -> tempfile.TemporaryDirectory[str] | None:
    """Return the newest folder of `initialize_temp_directories`; None if there is none."""
    return _temp_dirs[-1] if _temp_dirs else None


@functools.cache
def has_efa() -> bool:
    """Return whether libfabric finds an Elastic Fabric Adapter.

    Runs `fi_info -p efa -t FI_EP_RDM` once per process; False if `fi_info` cannot be run.
    """
    command = ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
    try:
        found = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return found.returncode == 0


def tp_transports() -> list[str] | None:
    """Return the transports to pass as `_transports` of TensorPipe's options; None for TensorPipe's own choice.

    With EFA the list leaves out InfiniBand, because TensorPipe mistakes EFA for it.
    """
    return ["shm", "uv"] if has_efa() else None


def create_tcp_store(
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> TCPStore:
    """Make a TCP store with its server in this process.

    The port is chosen and bound once, so no other process can take it.

    Args:
        addr: Address that the server listens on; default: loopback only.
        world_size: Clients that the store waits for if `wait_for_workers`, this process included.
        is_master: Must be True: a client needs the port of a server, which the server's `port` says.
        timeout: Limit of each operation of the store; default: 5 minutes.
        wait_for_workers: Whether to return only when all clients have connected.
        jit_class: Must be False: torch has no TorchScript class any more.
        use_libuv: Whether the server is torch's libuv server.

    Returns:
        The store; its attribute `port` is the server's port.

    Raises:
        UsageError: If `is_master` is False, or `jit_class` is True.
    """
    if not is_master:
        raise UsageError(
            "create_tcp_store(is_master=False): there is no port to connect to.\n"
            "The function makes a server, on a port that is known only afterwards.\n"
            "For a client write TCPStore(addr, server.port, ...), with the port of the server."
        )
    if jit_class:
        raise UsageError(
            "create_tcp_store(jit_class=True): torch has no TorchScript class of TCP stores any more.\n"
            "Only releases of torch that are too old for this library had one.\n"
            "Leave jit_class out; the function then returns a torch.distributed.TCPStore."
        )
    listening = socket.create_server((LOOPBACK if addr == "localhost" else addr, 0))
    return TCPStore(
        addr,
        listening.getsockname()[1],
        world_size,
        True,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        # From here on the store owns the descriptor.
        master_listen_fd=listening.detach(),
        use_libuv=use_libuv,
    )


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """Make a gloo device for the options of a gloo group.

    Args:
        interface: Name of a network interface; None, or any name on Windows, for loopback.
        lazy_init: Whether ranks connect only when they send the first message.

    Returns:
        The device, a `ProcessGroupGloo.Device`.
    """
    gloo: Any = dist.ProcessGroupGloo
    if interface is None or sys.platform == "win32":
        return gloo.create_device(hostname=LOOPBACK, lazy_init=lazy_init)
    return gloo.create_device(interface=interface, lazy_init=lazy_init)
