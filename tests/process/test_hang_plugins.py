"""Hangs on a backend of a package that keeps no record: torch's hooks keep it, and a hang is proven as on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.children import run_pytest, write_file
from tests.support.starter import Starter

# A backend in Python, as a package registers it. gloo moves its data, without a name of a group that torch knows.
_PLUGIN = """
    import torch.distributed as dist
    from torch._C._distributed_c10d import Backend, ProcessGroupGloo

    class Plug(Backend):
        def __init__(self, store, rank, size, timeout):
            super().__init__(rank, size)
            self.gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)

        def getBackendName(self):
            return "plug"

        def allreduce(self, tensors, opts):
            return self.gloo.allreduce(tensors, opts)

        def allgather(self, outputs, inputs, opts):
            return self.gloo.allgather(outputs, inputs, opts)

        def barrier(self, opts):
            return self.gloo.barrier(opts)

    dist.Backend.register_backend("plug", Plug, devices=["cpu"])
"""
_CONFTEST = """
    from pathlib import Path

    def pytest_dist_backends():
        return Path(__file__).parent / "backend.bzl"
"""
_DECLARATION = """
    load("@dist_testing//dist_testing:backends.bzl", "declare_backend")

    PLUG = declare_backend(name = "plug", torch_backend = "plug", device = "cpu", register_module = "plug_group")
"""
_CASES = """
    import time
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.distributed(world_size=3)
    def test_correct(world):
        for number in range(3):
            if world.rank == number:
                # A pause is no hang.
                time.sleep(1.5)
            dist.all_reduce(torch.ones(3))
        dist.barrier()

    @pytest.mark.distributed(world_size=3)
    def test_early_return(world):
        dist.all_reduce(torch.ones(3))
        if world.rank != 2:
            dist.all_reduce(torch.ones(3))

    @pytest.mark.distributed(world_size=3)
    def test_other_call(world):
        if world.rank == 1:
            dist.all_gather([torch.ones(3) for _ in range(3)], torch.ones(3))
        dist.barrier()
        dist.all_reduce(torch.ones(3))
"""


@pytest.mark.skipif(torch.__version__ < "2.15", reason="torch records other backends than its own from 2.15 on")
def test_a_hang_on_a_plug_in_is_proven(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a hang on such a backend takes the whole limit of its case."""
    write_file(tmp_path, "plug_group.py", _PLUGIN)
    write_file(tmp_path, "conftest.py", _CONFTEST)
    write_file(tmp_path, "backend.bzl", _DECLARATION)
    write_file(tmp_path, "test_cases.py", _CASES)
    ended = run_pytest(starter, tmp_path, "-rA", "--dist-backend=plug", "--dist-timeout=300", "test_cases.py")
    ended.check(passed="test_correct", failed="test_early_return test_other_call")
    assert "rank 2 ended the test; ranks 0, 1 wait for it in all_reduce #2 of the default group" in ended.log
    assert "rank 1 calls all_gather" in ended.log
    assert ended.log.count("It is proven that no rank could ever go on") == 2
