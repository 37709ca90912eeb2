"""A suite in the style of vLLM's, on a small model of its decorators (`vllm_utils.py`).

`pytest vllm_suite.py`, in this folder, runs it under that harness; with `-p dist_testing.adopt.vllm`, on the engine.
"""

# mypy: disable-error-code="attr-defined,import-not-found,misc,no-untyped-call,untyped-decorator"

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from vllm_utils import (
    create_new_process_for_each_test,
    fork_new_process_for_each_test,
    multi_gpu_test,
    multi_process_parallel,
    ray,
    spawn_new_process_for_each_test,
)

SESSION = os.getpid()


def _group(rank: int, size: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


@ray.remote(num_gpus=1, max_calls=1)
def all_reduce_worker(monkeypatch: Any, tp_size: int, pp_size: int, rank: int, port: int) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if rank == 0:
        with socket.socket() as other, pytest.raises(OSError, match="already in use"):
            other.bind(("127.0.0.1", port))
    _group(rank, tp_size * pp_size, port)
    value = torch.full((2,), float(rank + 1))
    dist.all_reduce(value)
    assert value.tolist() == [3.0, 3.0]
    dist.destroy_process_group()


@ray.remote(num_gpus=1, max_calls=1)
def failing_worker(monkeypatch: Any, tp_size: int, pp_size: int, rank: int, port: int) -> None:
    _group(rank, tp_size * pp_size, port)
    assert rank != 1, "planted"
    dist.barrier()


@fork_new_process_for_each_test
def test_fork() -> None:
    assert os.getpid() != SESSION
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()


@pytest.mark.parametrize("model", ["one", "two"])
@create_new_process_for_each_test()
def test_parameters(model: str, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_USE_V1", model)
    (tmp_path / os.environ["VLLM_USE_V1"]).touch()
    # An argument without a pickle.
    assert threading.Lock() is not None


@fork_new_process_for_each_test
def test_environment_is_not_changed() -> None:
    assert "VLLM_USE_V1" not in os.environ


@pytest.mark.parametrize("tp_size", [2])
@pytest.mark.parametrize("test_target", [all_reduce_worker])
def test_parallel(monkeypatch: Any, tp_size: int, test_target: Any) -> None:
    multi_process_parallel(monkeypatch, tp_size, 1, test_target)


@multi_gpu_test(num_gpus=2)
def test_parallel_in_a_process(monkeypatch: Any) -> None:
    multi_process_parallel(monkeypatch, 2, 1, all_reduce_worker)


def _spawned(rank: int, port: int) -> None:
    _group(rank, 2, port)
    dist.barrier()
    dist.destroy_process_group()


@multi_gpu_test(num_gpus=2)
def test_torch_spawn() -> None:
    import vllm_utils

    mp.spawn(_spawned, args=(vllm_utils.get_open_port(),), nprocs=2)


@create_new_process_for_each_test()
def test_engine_is_left_running() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])


@multi_gpu_test(num_gpus=4)
def test_needs_more_gpus() -> None:
    raise AssertionError


class TestClass:
    @fork_new_process_for_each_test
    def test_method(self) -> None:
        assert isinstance(self, TestClass)


@fork_new_process_for_each_test
def test_fails() -> None:
    raise ValueError("planted")


@fork_new_process_for_each_test
def test_dies() -> None:
    os.kill(os.getpid(), 9)


def test_parallel_fails(monkeypatch: Any) -> None:
    multi_process_parallel(monkeypatch, 2, 1, failing_worker)


# From here on: holes of the own harness, under which all of them pass.


@fork_new_process_for_each_test
def test_hole_skip() -> None:
    pytest.skip("not on this platform")


@fork_new_process_for_each_test
def test_hole_exit_0() -> None:
    os._exit(0)


@spawn_new_process_for_each_test
def test_hole_spawn_ran_nothing() -> None:
    raise ValueError("never reached")


@pytest.mark.parametrize("method", ["spawn"])
@create_new_process_for_each_test("spawn")
def test_hole_spawn_with_arguments(method: str) -> None:
    assert method == "fork"
