"""Attached worlds: who starts their ranks in tests, and cases that every launcher must give the same results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests.support.children import Ended, assert_no_folder_left, start_pytest, write_file
from tests.support.starter import Child, Starter


class Agent:
    """Plays torchrun's agent for its ranks on one node: a store, and variables with its address."""

    def __init__(self, starter: Starter, folder: Path) -> None:
        # Here, because every test of the folder of this fixture would load torch.
        from torch._C._distributed_c10d import TCPStore

        self._starter = starter
        self._folder = folder
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self, *options: str, source_of_1: str = "", env: Mapping[str, str] | None = None) -> list[Child]:
        """Start two ranks; `source_of_1` replaces test_cases.py for rank 1."""
        if source_of_1:
            write_file(self._folder / "of-1", "test_cases.py", source_of_1)
        children = []
        for rank in range(2):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port), "GLOO_SOCKET_IFNAME": "lo"}
            variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "run", **(env or {})}
            file = "of-1/test_cases.py" if source_of_1 and rank else "test_cases.py"
            children.append(start_pytest(self._starter, self._folder, "-rA", *options, file, env=variables))
        return children

    def run(self, source: str, *options: str) -> list[Ended]:
        """Run a file on both ranks to its end, and check that nothing is left."""
        write_file(self._folder, "test_cases.py", source)
        return wait_all(self.start(*options))


def wait_all(children: list[Child]) -> list[Ended]:
    """Wait for the end of all, and check that nothing is left."""
    ended = [Ended(child.wait(), child.log) for child in children]
    assert_no_folder_left(children[0].folder)
    return ended


# Of four ranks, on one node or on two.
CASES = """
    import datetime
    import os
    import socket
    import threading

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed


    def test_passes(world):
        nodes = int(os.environ["GROUP_WORLD_SIZE"])
        assert (world.size, world.node, world.local_rank) == (4, *divmod(world.rank, 4 // nodes))
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        places = (world.rank, world.local_rank, 4 // nodes, world.node)
        assert [os.environ[name] for name in names] == list(map(str, places))
        if nodes == 2:
            seen = [socket.gethostname(), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]]
            assert seen == [f"node{world.node}", "10.0.0.1", "eth0"]
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        (world.tmp_path / str(world.rank)).touch()
        world.barrier()
        assert len(list(world.tmp_path.iterdir())) == 4


    def test_skips(world):
        pytest.skip("not here")


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
            threading.Event().wait()
        dist.barrier(group)


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
# By the tags in test.xml.
RESULTS = {
    **{f"test_{name}": ["failure"] for name in ("raises", "hangs", "is_killed", "crashes", "exits")},
    **{f"test_{name}": [] for name in ("passes", "expected", "still_a_world")},
    "test_skips": ["skipped"],
}
_SAYS = (
    "not here",
    "rank 3 raised KeyError: 'planted' in call",
    "output of rank 3:\n",
    # gloo and a slow name server may say something before it.
    "\nprinted by 3\n",
    "rank 2 has not reached the call",
    "rank 2 of 4 is the rank that the others wait for: it was",
    "rank 3 of 4 failed first: it was killed by SIGKILL (9) in call",
    "last words",
    "rank 2 of 4 failed first: it was killed by SIGSEGV (11) in call",
    "Native stack of the thread that got SIGSEGV",
    "in test_crashes",
    "rank 1 of 4 failed first: it exited with code 3 in call",
)

# Rank 0 says when all ranks are in the test, and the test cuts the cable of node 1.
DOWN = """
    import pytest
    import torch
    import torch.distributed as dist

    from tests.support.bell import ring


    @pytest.mark.distributed(timeout=100)
    def test_loses_a_node(world):
        world.barrier()
        ring("here")
        dist.recv(torch.ones(1), (world.rank + 1) % world.size)


    @pytest.mark.distributed
    def test_never_runs(world):
        pass
"""


def assert_cases(log: str, xml_file: Path) -> None:
    """Check the one report of `CASES`."""
    for said in _SAYS:
        assert said in log, f"{said}\nis not in\n{log}"
    assert len(Ended(1, log).failures()) == 5, log
    cases = ElementTree.parse(xml_file).iter("testcase")
    assert {case.get("name"): [one.tag for one in case if one.tag != "properties"] for case in cases} == RESULTS


def assert_down(log: str) -> None:
    """Check that a report names the node that does not answer, and one of its ranks as the culprit."""
    # Its last phases may have been lost with it, and the connections to its ranks end one after the other.
    said = (
        r"rank [23] of 4 failed first(, then rank [23] in the same way)?: "
        r"it was lost in [a-z]+: node1 \(10\.0\.0\.2\) does not answer"
    )
    assert re.search(said, log), log
    assert "test_never_runs" not in log, log
