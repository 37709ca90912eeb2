"""Attached worlds over several nodes that cannot be: wrong tokens, addresses and ports, ranks that start twice."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Ended, write_file
from tests.support.cluster import PORT, Cluster, needs_nodes, wait_all
from tests.support.starter import Child, Starter

pytestmark = needs_nodes

_ONE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed
    def test_one(world):
        dist.barrier()
"""


@pytest.fixture
def cluster(starter: Starter, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, with a file of one good case."""
    write_file(tmp_path, "test_cases.py", _ONE)
    with Cluster(starter, tmp_path) as cluster:
        yield cluster


def _end(first: Child, others: list[Child]) -> list[Ended]:
    """Wait for the ranks of a node that cannot take part; then do what a launcher does, and end rank 0."""
    ended = [Ended(child.wait(), child.log) for child in others]
    first.send_signal(signal.SIGTERM)
    first.wait()
    for rank in ended:
        assert "Traceback" not in rank.log, rank.log
    return ended


def test_a_wrong_token_is_refused(cluster: Cluster) -> None:
    """If this fails, every process that reaches the port of rank 0 can report results, or give orders to ranks."""
    first, second = cluster.by_hand(1, env_of={0: {"DIST_TESTING_TOKEN": "right"}, 1: {"DIST_TESTING_TOKEN": "wrong"}})
    (ended,) = _end(first, [second])
    assert ended.code == pytest.ExitCode.INTERRUPTED
    assert "Node node1 and rank 0's node at 10.0.0.1:" in ended.log, ended.log
    assert "do not have the same token.\nDIST_TESTING_TOKEN differs between the nodes" in ended.log


def test_a_token_of_the_environment_is_not_in_the_store(cluster: Cluster) -> None:
    """If this fails, a secret that the user gives is readable for every process that reaches the store."""
    env = {"DIST_TESTING_TOKEN": "secret"}
    ended = wait_all(list(cluster.by_hand(1, env=env)))
    assert [rank.code for rank in ended] == [0, 0], ended


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"DIST_TESTING_ADDRESS": "127.0.0.1"}, "at 127.0.0.1: only this machine reaches it."),
        ({"MASTER_ADDR": "10.0.0.2"}, "at 10.0.0.2: rank 0 cannot listen there"),
    ],
    ids=["does not route", "of another machine"],
)
def test_a_wrong_address(cluster: Cluster, env: dict[str, str], said: str) -> None:
    """If this fails, the ranks of other nodes wait for minutes for a store that they cannot reach."""
    first, second = cluster.by_hand(1, env=env)
    ended = Ended(first.wait(), first.log)
    assert ended.code != 0
    assert f"Ranks of other nodes cannot reach rank 0 {said}" in ended.log
    second.send_signal(signal.SIGTERM)
    second.wait()


def test_a_port_that_is_taken(cluster: Cluster) -> None:
    """If this fails, the ranks connect to another program, or only torch's error is told."""
    with cluster.listening(0, PORT):
        first, second = cluster.by_hand(1)
        ended = Ended(first.wait(), first.log)
        second.send_signal(signal.SIGTERM)
        second.wait()
    assert ended.code != 0
    assert f"Rank 0 cannot listen at 10.0.0.1:{PORT}, where the other ranks look for it: Address already in use." in (
        ended.log
    )
    assert "another process has the port of MASTER_PORT" in ended.log


@pytest.mark.parametrize("places", [[0, 1, 1], [0, 1, 0]], ids=["same node", "other node"])
def test_a_rank_that_starts_twice(cluster: Cluster, places: list[int]) -> None:
    """If this fails, two processes report for one rank."""
    first, *others = cluster.by_hand(1, places=places, env_of={2: {"RANK": "1"}})
    refused = _first_to_end(others)
    wheres = ("the node of rank 0", "node1 (10.0.0.2)")
    assert any(f"it has connected already, from {where}." in refused.log for where in wheres), refused.log
    (other,) = (child for child in others if child is not refused)
    assert refused.wait() == pytest.ExitCode.INTERRUPTED
    first.send_signal(signal.SIGTERM)
    first.wait()
    assert other.wait() == pytest.ExitCode.INTERRUPTED, other.log


def _first_to_end(children: list[Child]) -> Child:
    pidfds = {os.pidfd_open(child.pid): child for child in children}
    try:
        poller = select.poll()
        for fd in pidfds:
            poller.register(fd, select.POLLIN)
        ready = poller.poll(120_000)
        assert ready, [child.log for child in children]
        return pidfds[ready[0][0]]
    finally:
        for fd in pidfds:
            os.close(fd)


def test_a_launched_process_of_another_node_that_dies_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, its rank is waited for until the limit of the case, or stays."""
    write_file(
        tmp_path,
        "test_cases.py",
        """
        import pytest
        import torch.distributed as dist
        from tests.support.bell import ring

        @pytest.mark.distributed(timeout=100)
        def test_loses_a_process(world):
            world.barrier()
            ring("here")
            world.store.get("never set")
        """,
    )
    with Bell(tmp_path) as bell:
        children = list(cluster.by_hand(1, env=bell.env))
        bell.wait(2, children[0])
        children[1].send_signal(signal.SIGKILL)
        ended = wait_all(children)
    assert [rank.code for rank in ended] == [1, -signal.SIGKILL], [rank.log for rank in ended]
    assert "rank 1 of 2 failed first: it was lost in" in ended[0].log, ended[0].log
    assert "its process on node1 (10.0.0.2) has ended" in ended[0].log
