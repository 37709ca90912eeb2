"""Attached worlds over several nodes: real launchers and ranks set by hand, on simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import write_file
from tests.support.cluster import Cluster, needs_nodes, wait_all
from tests.support.starter import Starter

pytestmark = needs_nodes

_CASES = """
    import os
    import socket

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed


    def test_passes(world):
        assert (world.size, world.node, world.local_rank) == (4, *divmod(world.rank, 2))
        assert socket.gethostname() == f"node{world.node}"
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR")
        assert [os.environ[name] for name in names] == [
            str(world.rank), str(world.local_rank), "2", str(world.node), "2", "10.0.0.1",
        ]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        (world.tmp_path / str(world.rank)).touch()
        world.barrier()
        assert len(list(world.tmp_path.iterdir())) == 4


    def test_raises(world):
        print("printed by", world.rank)
        if world.rank == 3:
            raise KeyError("planted")
        dist.barrier()


    def test_skips(world):
        pytest.skip("not here")


    @pytest.mark.distributed(timeout=3)
    def test_hangs(world):
        if world.rank == 2:
            import threading
            threading.Event().wait()
        dist.barrier()


    def test_is_killed(world):
        if world.rank == 3:
            print("last words")
            os.kill(os.getpid(), 9)
        dist.barrier()


    def test_never_runs(world):
        pass
"""
_OUTCOMES = {
    "test_passes": "PASSED",
    "test_raises": "FAILED",
    "test_hangs": "FAILED",
    "test_is_killed": "FAILED",
}


@pytest.fixture
def cluster(starter: Starter, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes."""
    with Cluster(starter, tmp_path) as cluster:
        yield cluster


def _check(log: str) -> None:
    for said in (
        "not here",
        "rank 3 raised KeyError: 'planted' in call",
        "output of rank 3:\nprinted by 3\n",
        "rank 3 of 4 failed first: it ended in call; its exit status is known only to its parent",
        "last words",
        "rank 2 of 4 is the rank that the others wait for: it was",
        "rank 2 has not come yet",
    ):
        assert said in log, f"{said}\nis not in\n{log}"


def test_by_hand(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, ranks of another node cannot report, or the report names another rank."""
    write_file(tmp_path, "test_cases.py", _CASES)
    first, *_ = wait_all(list(cluster.by_hand(2)))
    assert first.outcomes() == _OUTCOMES, first.log
    _check(first.log)


def test_torchrun(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, `torchrun --nnodes=2` does not work."""
    write_file(tmp_path, "test_cases.py", _CASES)
    write_file(tmp_path, "pytest.ini", "[pytest]\naddopts = -p dist_testing.frontends.pytest.plugin --color=no\n")
    first, second = wait_all(cluster.torchrun(2, "-m", "pytest", "-rA", "test_cases.py"))
    assert first.code == second.code == 1, first.log
    _check(first.log + second.log)
