"""Attached worlds over several nodes: ranks of torchrun, and ranks whose variables a script has set."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Ended, write_file
from tests.support.cluster import Cluster, needs_nodes, wait_all
from tests.support.node_cases import BAD, BAD_OUTCOMES, DOWN, assert_bad, assert_down
from tests.support.starter import Starter

pytestmark = needs_nodes


@pytest.fixture
def cluster(starter: Starter, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes."""
    with Cluster(starter, tmp_path) as cluster:
        yield cluster


def test_ranks_set_by_hand_have_one_verdict(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, ranks of another node cannot report, or the report names another rank."""
    write_file(tmp_path, "test_cases.py", BAD)
    first, second, *others = wait_all(list(cluster.by_hand(2)))
    assert first.outcomes() == BAD_OUTCOMES, first.log
    assert_bad(first.log)
    assert [first.code, second.code, others[0].code, others[1].code] == [1, 1, 1, 1]
    for rank in (second, *others):
        # torch warns that the names of the nodes have no addresses.
        assert [line for line in rank.log.splitlines() if "hostname of the client socket" not in line] == []


def test_ranks_set_by_hand_pass_wherever_they_are(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, a launcher that deals the ranks out in turn gets wrong local ranks, or a good run is no pass."""
    write_file(
        tmp_path,
        "test_cases.py",
        """
        import os
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed
        def test_places(world):
            assert (world.local_rank, world.node) == [(0, 0), (0, 1), (1, 0)][world.rank]
            assert os.environ["LOCAL_WORLD_SIZE"] == str(2 - world.node)
            dist.barrier()
        """,
    )
    ended = wait_all(list(cluster.by_hand(0, places=[0, 1, 0])))
    assert [rank.code for rank in ended] == [0] * 3, ended[0].log
    assert ended[0].outcomes() == {"test_places": "PASSED"}


def test_a_node_that_goes_down_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, the other nodes wait for a node without power until the limit of the case, or longer."""
    write_file(tmp_path, "test_cases.py", DOWN)
    with Bell(tmp_path) as bell:
        children = list(cluster.by_hand(2, env=bell.env))
        bell.wait(4, children[0])
        cluster.cut(1)
        ended = wait_all(children)
    assert_down(ended[0].log)
    assert [rank.code for rank in ended] == [1, 1, 2, 2], [rank.log for rank in ended]
    for rank in ended[2:]:
        assert "This node has lost the node of rank 0" in rank.log
        assert "Traceback" not in rank.log


def test_torchrun_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, `torchrun --nnodes=2` gives two reports, another verdict, or a success for a failure."""
    write_file(tmp_path, "test_cases.py", BAD)
    write_file(tmp_path, "pytest.ini", "[pytest]\naddopts = -p dist_testing.core.pytest.plugin --color=no\n")
    # As Kubeflow names torchrun's options for a pod.
    ended = wait_all(cluster.torchrun(2, "-m", "pytest", "-rA", "test_cases.py"))
    assert [agent.code for agent in ended] == [1, 1], ended[0].log
    assert_bad("".join(agent.log for agent in ended))


def test_torchrun_loses_a_node(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, a node without power costs torchrun's user the limit of the case, or stays unknown."""
    write_file(tmp_path, "test_cases.py", DOWN)
    write_file(tmp_path, "pytest.ini", "[pytest]\naddopts = -p dist_testing.core.pytest.plugin --color=no\n")
    with Bell(tmp_path) as bell:
        first, second = cluster.torchrun(2, "-m", "pytest", "-rA", "test_cases.py", env=bell.env)
        bell.wait(4, first)
        cluster.power_off(1)
        # It leaves its folders behind, as a machine without power does.
        assert second.wait() == -signal.SIGKILL
        ended = Ended(first.wait(), first.log)
    assert_down(ended.log)
    assert ended.code == 1, ended.log
