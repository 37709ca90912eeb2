"""A small model of the harness of DeepSpeed's tests: the same names and the same steps, in own code."""

from __future__ import annotations

import inspect
import os
import socket
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from _pytest.fixtures import FixtureFunctionDefinition
from _pytest.outcomes import Skipped


def get_master_port() -> str:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return str(chosen.getsockname()[1])


class DistributedExec:
    world_size: Any = 2
    backend = "gloo"
    init_distributed = True
    set_dist_env = True
    requires_cuda_env = False
    reuse_dist_env = False
    non_daemonic_procs = False
    exec_timeout = 600
    _pool_cache: dict[int, Any] = {}  # noqa: RUF012  # as the original

    def __call__(self, request: Any) -> None:
        self._fixture_kwargs = self._values(request, self.run)
        if self.requires_cuda_env:
            pytest.skip("only supported in accelerator environments.")
        self._launch_with_file_store(request, self.world_size)

    def run(self) -> None:
        raise NotImplementedError

    def _values(self, request: Any, function: Any) -> dict[str, Any]:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        return {name: request.getfixturevalue(name) for name in names}

    def _launch_with_file_store(self, request: Any, world_size: Any) -> None:
        folder = request.getfixturevalue("tmpdir")
        for number, size in enumerate([world_size] if isinstance(world_size, int) else world_size):
            self._launch_procs(size, f"file://{folder}/store-{number}")

    def _launch_procs(self, num_procs: int, init_method: str) -> None:
        mp.set_start_method("forkserver", force=True)
        launch = self._launch_non_daemonic_procs if self.non_daemonic_procs else self._launch_daemonic_procs
        launch(num_procs, init_method)

    def _launch_daemonic_procs(self, num_procs: int, init_method: str) -> None:
        port = None
        if self.reuse_dist_env and num_procs in self._pool_cache:
            pool = self._pool_cache[num_procs]
        else:
            pool, port = mp.Pool(num_procs), get_master_port()
            if self.reuse_dist_env:
                self._pool_cache[num_procs] = pool
        waiting = pool.starmap_async(
            self._dist_run, [(rank, num_procs, port, init_method) for rank in range(num_procs)]
        )
        try:
            reasons = waiting.get(self.exec_timeout)
        finally:
            if not self.reuse_dist_env:
                pool.starmap(self._dist_destroy, [()] * num_procs)
                pool.close()
                pool.join()
        if any(reasons):
            pytest.skip(reasons[0])

    def _launch_non_daemonic_procs(self, num_procs: int, init_method: str) -> None:
        port, reasons = get_master_port(), mp.get_context("spawn").Queue()
        processes = [
            mp.get_context("spawn").Process(target=self._dist_run, args=(rank, num_procs, port, init_method, reasons))
            for rank in range(num_procs)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(self.exec_timeout)
        for rank, process in enumerate(processes):
            if process.exitcode != 0:
                pytest.fail(f"Worker {rank} ended with {process.exitcode}", pytrace=False)
        if not reasons.empty():
            pytest.skip(reasons.get())

    def _dist_run(self, local_rank: int, num_procs: int, master_port: Any, init_method: str, skip_msg: Any = "") -> Any:
        if not dist.is_initialized():
            if self.set_dist_env:
                os.environ.update(
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(master_port),
                    LOCAL_RANK=str(local_rank),
                    RANK=str(local_rank),
                    WORLD_SIZE=str(num_procs),
                )
            if self.init_distributed:
                dist.init_process_group(self.backend, init_method=init_method, rank=local_rank, world_size=num_procs)
                dist.barrier()
        try:
            self.run(**self._fixture_kwargs)
        except Skipped as skipped:
            if self.non_daemonic_procs:
                skip_msg.put(skipped.msg)
            else:
                skip_msg = skipped.msg
        return skip_msg if isinstance(skip_msg, str) else ""

    def _dist_destroy(self) -> None:
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


class DistributedFixture(DistributedExec):
    is_dist_fixture = True
    # pytest takes the class for the function of the fixture.
    __name__ = ""

    def __init__(self) -> None:
        pass


def dist_fixture(cls: type[DistributedFixture]) -> Any:
    """Make pytest take a class for a fixture. The original sets an attribute that older releases of pytest look for."""
    marker: Any = pytest.fixture(scope="function")
    return FixtureFunctionDefinition(function=cls, fixture_function_marker=marker, _ispytest=True)


class DistributedTest(DistributedExec):
    is_dist_test = True

    def __call__(self, request: Any) -> None:
        self._current_test = getattr(self, request.function.__name__)
        self._fixture_kwargs = self._values(request, self._current_test)
        if self.requires_cuda_env:
            pytest.skip("only supported in accelerator environments.")
        size = self._fixture_kwargs.get("world_size", self.world_size)
        for mark in getattr(request.function, "pytestmark", []):
            if mark.name == "world_size":
                size = mark.args[0]
        self._launch_with_file_store(request, size)

    def run(self, **values: Any) -> None:
        self._current_test(**values)


# The hooks of their conftest.py.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: Any) -> None:
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True


def pytest_runtest_teardown(item: Any, nextitem: Any) -> None:
    if getattr(item.cls, "reuse_dist_env", False) and not nextitem:
        for pool in item.cls._pool_cache.values():
            pool.terminate()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> None:
    if getattr(fixturedef.func, "is_dist_fixture", False):
        fixturedef.func()(request)
