"""The cases of an attached world over two nodes with two ranks each, and what its one report must say."""

from __future__ import annotations

import re

from tests.support.children import Ended
from tests.support.installed_torch import said_by_gloo

GOOD = """
    import datetime
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
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        (world.tmp_path / str(world.rank)).touch()
        world.barrier()
        assert len(list(world.tmp_path.iterdir())) == 4


    def test_skips(world):
        pytest.skip("not here")
"""
GOOD_OUTCOMES = {"test_passes": "PASSED"}

_KILLED = """
    def test_is_killed(world):
        if world.rank == 3:
            print("last words")
            os.kill(os.getpid(), 9)
        dist.barrier()


    def test_crashes(world):
        if world.rank == 2:
            import ctypes
            ctypes.string_at(0)
        world.barrier()


    def test_exits(world):
        if world.rank == 1:
            os._exit(3)
        world.barrier()


    @pytest.mark.distributed(init=False, expected_exits={2: -9, 0: 4})
    def test_expected(world):
        if world.rank in (0, 2):
            os._exit(4) if world.rank == 0 else os.kill(os.getpid(), 9)


    def test_still_a_world(world):
        dist.barrier()
"""
KILLED = f"{GOOD}\n{_KILLED}"

BAD = f"""{GOOD}

    def test_raises(world):
        print("printed by", world.rank)
        if world.rank == 3:
            raise KeyError("planted")
        dist.barrier()


    @pytest.mark.distributed(timeout=8)
    def test_hangs(world):
        # A limit of the user, so that no rank raises before the deadline: on a busy machine that takes long.
        group = dist.new_group(timeout=datetime.timedelta(seconds=300))
        if world.rank == 2:
            import threading
            threading.Event().wait()
        dist.barrier(group)

{_KILLED}"""
KILLED_OUTCOMES = {
    "test_passes": "PASSED",
    "test_is_killed": "FAILED",
    "test_crashes": "FAILED",
    "test_exits": "FAILED",
    "test_expected": "PASSED",
    "test_still_a_world": "PASSED",
}
BAD_OUTCOMES = KILLED_OUTCOMES | {
    "test_raises": "FAILED",
    "test_hangs": "FAILED",
}
_KILLED_SAYS = (
    "not here",
    "rank 3 of 4 failed first: it was killed by SIGKILL (9) in call",
    "last words",
    "rank 2 of 4 failed first: it was killed by SIGSEGV (11) in call",
    "Native stack of the thread that got SIGSEGV",
    "in test_crashes",
    "rank 1 of 4 failed first: it exited with code 3 in call",
)
_BAD_SAYS = (
    *_KILLED_SAYS,
    "rank 3 raised KeyError: 'planted' in call",
    f"output of rank 3:\n{said_by_gloo(3, 4)}printed by 3\n",
    "rank 2 has not come yet",
    "rank 2 of 4 is the rank that the others wait for: it was",
)

# Rank 0 says when all ranks are in the test, and the test cuts the cable of node 1.
DOWN = """
    import pytest
    import torch.distributed as dist

    from tests.support.bell import ring


    @pytest.mark.distributed(timeout=100)
    def test_loses_a_node(world):
        world.barrier()
        ring("here")
        dist.recv(__import__("torch").ones(1), (world.rank + 1) % 4)


    @pytest.mark.distributed
    def test_never_runs(world):
        pass
"""


def assert_bad(log: str) -> None:
    """Check the one report of the cases of `BAD`."""
    _assert_says(log, *_BAD_SAYS)
    assert len(Ended(1, log).failures()) == 5, log


def assert_killed(log: str) -> None:
    """Check the one report of the cases of `KILLED`."""
    _assert_says(log, *_KILLED_SAYS)
    assert len(Ended(1, log).failures()) == 3, log


def _assert_says(log: str, *sayings: str) -> None:
    for said in sayings:
        assert said in log, f"{said}\nis not in\n{log}"


def assert_down(log: str) -> None:
    """Check that a report names the node that does not answer, and one of its ranks as the culprit."""
    # Its last phases may have been lost with it, and the connections to its ranks end one after the other.
    said = r"rank [23] of 4 failed first: it was lost in [a-z]+: node1 \(10\.0\.0\.2\) does not answer"
    assert re.search(said, log), log
    assert "test_never_runs" not in log, log
