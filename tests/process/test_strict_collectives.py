"""Ranks that make different calls and pass all the same: a failure where the user asks for it."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases, run_pytest, write_file
from tests.support.starter import Starter

# A broadcast of more numbers than a rank expects aborts it; of fewer, it passes.
_SOURCE = """
    from datetime import timedelta
    import pytest
    import torch
    import torch.distributed as dist
    import dist_testing

    def differs(rank):
        dist.broadcast(torch.ones(4 if rank == 1 else 3), 0)

    @pytest.mark.distributed(world_size=2)
    def test_differs(world):
        differs(world.rank)

    @pytest.mark.distributed(world_size=2, strict_collectives=True)
    def test_strict(world):
        differs(world.rank)

    @pytest.mark.distributed(world_size=2, strict_collectives=False)
    def test_lenient(world):
        differs(world.rank)

    @pytest.mark.distributed(world_size=2, strict_collectives=True)
    def test_agrees(world):
        dist.broadcast(torch.ones(3), 0)
        group = dist.new_group([0])
        if world.rank == 0:
            dist.all_reduce(torch.ones(3), group=group)
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(3), 0)

    @pytest.mark.distributed(world_size=2, strict_collectives=True)
    def test_limits(world):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(3), group=group)
            world.store.set("over", "1")
        else:
            world.store.get("over")

    @pytest.mark.distributed(world_size=2, strict_collectives=True)
    def test_counts(world):
        if world.rank == 0:
            dist.all_reduce(torch.ones(3), async_op=True)
        world.barrier()

    class TestPool:
        @pytest.mark.distributed(world_size=2, isolation="pool")
        @pytest.mark.parametrize("number", range(3))
        def test_pool(self, world, number):
            # Only a test that asks for it pays for the comparison.
            differs(world.rank)
            dist.barrier()

    class TestStrictPool:
        @pytest.mark.distributed(world_size=2, isolation="pool", strict_collectives=True)
        @pytest.mark.parametrize("number", range(3))
        def test_strict_pool(self, world, number):
            if number == 1:
                differs(world.rank)
            else:
                dist.barrier()

    class TestUnittest(dist_testing.MultiProcessTestCase):
        world_size = 2
        strict_collectives = True

        def test_method(self):
            store = dist.FileStore(self.file_name, 2)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
            differs(self.rank)
            dist.destroy_process_group()

    class TestContinuous(dist_testing.MultiProcContinuousTest):
        world_size = 2
        strict_collectives = True

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_continuous(self):
            differs(self.rank)
"""
_SAID = (
    "the ranks disagree about call #1 of the default group: rank 0 calls broadcast of [[3]] Float (test_cases.py:9), "
    "rank 1 calls broadcast of [[4]] Float (test_cases.py:9)"
)


def test_calls_that_differ_fail_where_the_test_asks_for_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that passes by luck hangs on another backend, and no report says why."""
    ended = run_cases(starter, tmp_path, _SOURCE)
    ended.check(
        passed="test_differs test_lenient test_agrees test_limits test_pool[0] test_pool[1] test_pool[2]"
        " test_strict_pool[0] test_strict_pool[2]",
        failed="test_strict test_counts test_strict_pool[1] test_method test_continuous",
    )
    assert f"test_strict (world of 2): {_SAID}" in ended.log
    assert "rank 0 made 1 call, rank 1 made 0 calls of the default group" in ended.log
    assert "test_differs (world" not in ended.log


def test_option_makes_failures(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a team cannot ask for it once for all its tests."""
    write_file(tmp_path, "test_cases.py", _SOURCE)
    options = ("-rA", "--dist-strict-collectives", "test_cases.py", "-k", "differs or lenient or agrees")
    ended = run_pytest(starter, tmp_path, *options)
    ended.check(failed="test_differs", passed="test_lenient test_agrees")
