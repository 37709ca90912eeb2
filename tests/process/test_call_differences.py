"""A failure whose cause is a call of another rank: the headline tells which calls differ, and where."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases
from tests.support.starter import Starter

_SOURCE = """
    import os
    import signal
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=3)

    def reduce_all(rank, operation=dist.ReduceOp.SUM, dtype=torch.float32):
        tensor = torch.ones(3, dtype=dtype)
        dist.all_reduce(tensor, operation)
        return tensor[0].item()

    @pytest.mark.distributed(world_size=4)
    def test_reduction(world):
        assert reduce_all(world.rank, dist.ReduceOp.MAX if world.rank == 2 else dist.ReduceOp.SUM) == 4

    @pytest.mark.distributed(world_size=4)
    def test_type(world):
        reduce_all(world.rank, dtype=torch.float64 if world.rank == 2 else torch.float32)

    def test_skip(world):
        reduce_all(world.rank, dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM)
        if world.rank == 1:
            pytest.skip("too small")

    def test_left_out(world):
        if world.rank != 1:
            reduce_all(world.rank)
        other = torch.full((3,), float(world.rank))
        dist.all_reduce(other)
        dist.all_reduce(other)
        assert other[0] == 9

    class TestPool:
        @pytest.mark.distributed(isolation="pool")
        @pytest.mark.parametrize("number", range(2))
        def test_pool(self, world, number):
            dist.barrier()
            is_odd = number == 1 and world.rank == 0
            assert reduce_all(world.rank, dist.ReduceOp.MAX if is_odd else dist.ReduceOp.SUM) == 3

    def test_branches(world):
        # Each rank does its part in a line of its own.
        tensor = torch.full((3,), float(world.rank))
        if world.rank == 1:
            dist.broadcast(tensor, 1)
        else:
            dist.broadcast(tensor, 1)
        dist.barrier()
        dist.all_reduce(tensor)
        assert world.rank != 2

    @pytest.mark.distributed(world_size=2)
    def test_longer(world):
        # gloo ends the process of rank 0, which expects less data.
        dist.all_reduce(torch.ones(500 if world.rank == 1 else 3))

    def test_early(world):
        # A rank that fails makes fewer calls than the others, and is no victim of them.
        dist.barrier()
        assert world.rank != 2
        dist.all_reduce(torch.ones(3))

    @pytest.mark.filterwarnings("error", "ignore::FutureWarning:torch.distributed.c10d_logger")
    @pytest.mark.distributed(world_size=2)
    def test_deprecated(world):
        # torch's mark stands between the test and the call, and warns of the line that calls it.
        dist.all_gather_into_tensor(torch.ones(6), torch.ones(3)) if world.rank else dist.barrier()
"""
_OTHER = "calls all_reduce of [[3]] Float with MAX (test_cases.py:12)"
_CALL = "call all_reduce of [[3]] Float with SUM (test_cases.py:12)"


def test_headlines(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a report blames a rank for what it got from another one, or blames a call that is right."""
    ended = run_cases(starter, tmp_path, _SOURCE)
    first = "the ranks disagree about call #1 of the default group"
    second = first.replace("#1", "#2")
    for name, said in {
        "test_reduction (world of 4)": f"{first}: rank 2 {_OTHER}, ranks 0, 1, 3 {_CALL}; then rank ",
        "test_type (world of 4)": f"{first}: rank 2 calls all_reduce of [[3]] Double (test_cases.py:12), ranks ",
        "test_skip (world of 3)": f"{first}: rank 1 {_OTHER}, ranks 0, 2 {_CALL}; then ranks disagree about a skip: ",
        "test_left_out (world of 3)": f"{first}: rank 1 calls all_reduce of [[3]] Float (test_cases.py:",
        "test_deprecated (world of 2)": f"{first}: rank 0 calls barrier (test_cases.py:70), "
        "rank 1 calls all_gather (test_cases.py:70)",
        "TestPool::test_pool[1] (world of 3)": f"{second}: rank 0 {_OTHER}, ranks 1, 2 {_CALL}; then ",
    }.items():
        assert f"{name}: {said}" in ended.log, ended.log
    assert "test_longer (world of 2): rank 0 got more data than its call of gloo expects; " in ended.log
    assert "; then rank 0 was killed by SIGABRT (6)" in ended.log
    for name in ("test_branches", "test_early"):
        assert f"{name} (world of 3): rank 2 raised AssertionError" in ended.log


def test_lines_of_threads(starter: Starter, tmp_path: Path) -> None:
    """The backend of threads compares calls itself; its error names the lines of the test, not the library's."""
    source = """
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.mark.distributed(world_size=2)
        def test_threads(world):
            dist.all_gather_into_tensor(torch.ones(6), torch.ones(3)) if world.rank else dist.all_reduce(torch.ones(3))
    """
    ended = run_cases(starter, tmp_path, source, "--dist-backend=threaded")
    assert (
        "the calls of its ranks differ: rank 0 all_reduce(SUM, float32[3]); rank 1 all_gather_into_tensor(float32[3])"
        in ended.log
    )
    for call in ("all_reduce(SUM, float32[3])", "all_gather_into_tensor(float32[3])"):
        assert f": {call} at {tmp_path}/test_cases.py:8 in test_threads" in ended.log
    assert "call_details" not in ended.log
