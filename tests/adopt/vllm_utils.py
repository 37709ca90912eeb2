"""A small model of the decorators in vLLM's `tests/utils.py`, and of what its tests need of ray.

It has their ways to start a process and to judge it, with their holes: a skip of the fork variant is a pass, and the
spawn variant runs the module of the test, which does nothing.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GPUS = 2


def get_open_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def fork_new_process_for_each_test(func: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        os.setpgrp()
        with tempfile.TemporaryDirectory() as folder:
            raised = Path(folder, "raised")
            pid = os.fork()
            if pid == 0:
                try:
                    func(*args, **kwargs)
                except pytest.skip.Exception as skip:
                    print(skip)
                    os._exit(0)
                except Exception as error:
                    try:
                        raised.write_bytes(pickle.dumps(error))
                    except Exception:
                        raised.write_bytes(pickle.dumps(AssertionError(traceback.format_exc())))
                    os._exit(1)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(os.getpgid(0), signal.SIGTERM)
            signal.signal(signal.SIGTERM, handler)
            if status:
                if raised.exists():
                    raise pickle.loads(raised.read_bytes())
                raise AssertionError(f"function {func.__name__} failed (exit code: {status})")

    return wrapper


def spawn_new_process_for_each_test(f: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if os.environ.get("RUNNING_IN_SUBPROCESS") == "1":
            f(*args, **kwargs)
            return
        env = {**os.environ, "RUNNING_IN_SUBPROCESS": "1", "PYTHONPATH": str(Path(__file__).parent)}
        ended = subprocess.run([sys.executable, "-m", f.__module__], env=env, input=b"", capture_output=True)
        if ended.returncode:
            raise RuntimeError(f"Error raised in subprocess:\n{ended.stderr.decode()}")

    return wrapper


def create_new_process_for_each_test(method: str | None = None) -> Callable[..., Any]:
    return spawn_new_process_for_each_test if method == "spawn" else fork_new_process_for_each_test


def multi_gpu_test(*, num_gpus: int) -> Callable[..., Any]:
    def wrapper(f: Callable[..., None]) -> Any:
        func = create_new_process_for_each_test()(f)
        skip = pytest.mark.skipif(num_gpus > GPUS, reason=f"Need at least {num_gpus} GPUs to run the test.")
        return pytest.mark.distributed(num_gpus=num_gpus)(skip(func))

    return wrapper


def multi_process_parallel(monkeypatch: Any, tp_size: int, pp_size: int, test_target: Any) -> None:
    port = get_open_port()
    ray.get([test_target.remote(monkeypatch, tp_size, pp_size, rank, port) for rank in range(tp_size * pp_size)])


class _RemoteFunction:
    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def remote(self, *args: Any) -> Any:
        # A worker of ray takes a second or more to start; this one is forked.
        process = multiprocessing.get_context("fork").Process(target=self._function, args=args)
        process.start()
        return process


def _get(processes: list[Any]) -> None:
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("RayTaskError")


ray = types.SimpleNamespace(remote=lambda **_: _RemoteFunction, get=_get)
