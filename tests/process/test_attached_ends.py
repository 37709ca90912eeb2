"""Attached worlds whose processes end, are stopped, or cannot be of one world."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.attached import DOWN, Agent, assert_down, wait_all
from tests.support.bell import Bell
from tests.support.children import write_file
from tests.support.cluster import Cluster, needs_nodes
from tests.support.starter import LIMIT_S, Child, Starter

_WAITS = """
    import pytest
    from tests.support.bell import ring

    @pytest.mark.distributed(timeout=100)
    def test_waits(world):
        world.barrier()
        ring("here")
        world.store.get("never set")

    @pytest.mark.distributed
    def test_after(world): ...
"""
_NAMED = "rank 1 of 2 failed first: it was lost in call: the process that torchrun started for it has ended"


@pytest.mark.parametrize(
    ("victims", "number", "codes", "said"),
    [
        ([1], signal.SIGKILL, [1, -9], [_NAMED, "The process(es) of rank(s) 1 of torchrun's world are lost"]),
        ([0], signal.SIGKILL, [-9, 2], ["", "The connection to rank 0 has ended before the run was over"]),
        ([0, 1], signal.SIGTERM, [2, 2], ["the runner got SIGTERM"]),
    ],
    ids=["another is killed", "rank 0 is killed", "all are stopped"],
)
def test_launched_processes_that_end(
    agent: Agent, tmp_path: Path, victims: list[int], number: int, codes: list[int], said: list[str]
) -> None:
    """If this fails, the others wait, a fork server or rank stays, or a test is blamed for what a launcher did."""
    write_file(tmp_path, "test_cases.py", _WAITS)
    with Bell(tmp_path) as bell:
        children = agent.start("--junitxml=out.xml", env=bell.env)
        bell.wait(2, children[0])
        for victim in victims:
            children[victim].send_signal(number)
        ended = wait_all(children)
    log = "".join(one.log for one in ended)
    assert [one.code for one in ended] == codes, log
    for text in said:
        assert text in log
    assert ended[0].outcomes() == ({"test_waits": "FAILED"} if victims == [1] else {}), log
    assert (tmp_path / "out.xml").exists() == (0 not in victims or number == signal.SIGTERM)
    assert "Traceback" not in log


def test_rank_with_other_tests_is_reported(agent: Agent, tmp_path: Path) -> None:
    """If this fails, the peers of a rank with other tests wait for it in the first collective."""
    write_file(tmp_path, "test_cases.py", _WAITS)
    first, second = wait_all(agent.start("-k", "after", source_of_1="import nothing_of_this_name\n"))
    assert (first.code, second.code) == (1, 1), first.log
    for said in (
        "rank 1 has not collected the tests of rank 0: rank 0 has test_cases.py::test_after, and rank 1 does not",
        "This rank has not collected test_cases.py::test_after.",
        "No module named 'nothing_of_this_name'",
    ):
        assert said in first.log


@pytest.fixture
def cluster(starter: Starter, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, with a file of one case that waits and a good one."""
    write_file(tmp_path, "test_cases.py", _WAITS)
    with Cluster(starter, tmp_path) as cluster:
        yield cluster


@needs_nodes
def test_ranks_pass_wherever_they_are(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, ranks that are dealt out in turn have wrong places, or a token of the environment is not used."""
    source = """
        import os
        import pytest
        import torch.distributed as dist

        @pytest.mark.distributed
        def test_places(world):
            assert (world.local_rank, world.node) == [(0, 0), (0, 1), (1, 0)][world.rank]
            assert os.environ["LOCAL_WORLD_SIZE"] == str(2 - world.node)
            dist.barrier()
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = wait_all(cluster.by_hand(places=[0, 1, 0], env={"DIST_TESTING_TOKEN": "secret"}))
    assert [rank.code for rank in ended] == [0] * 3, ended[0].log
    assert ended[0].outcomes() == {"test_places": "PASSED"}


@needs_nodes
def test_a_node_that_goes_down_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, the other nodes wait for a node without power until the limit of the case, or longer."""
    write_file(tmp_path, "test_cases.py", DOWN)
    with Bell(tmp_path) as bell:
        children = cluster.by_hand(places=[0, 0, 1, 1], env=bell.env)
        bell.wait(4, children[0])
        cluster.cut(1)
        ended = wait_all(children)
    assert_down(ended[0].log)
    assert [rank.code for rank in ended] == [1, 1, 2, 2], [rank.log for rank in ended]
    for rank in ended[2:]:
        assert "The connection to rank 0 has ended before the run was over" in rank.log
        assert "Traceback" not in rank.log


@needs_nodes
def test_a_process_of_another_node_that_dies_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """If this fails, its rank is waited for until the limit of the case, or stays."""
    with Bell(tmp_path) as bell:
        children = cluster.by_hand(places=[0, 1], env=bell.env)
        bell.wait(2, children[0])
        children[1].send_signal(signal.SIGKILL)
        first, second = wait_all(children)
    assert (first.code, second.code) == (1, -signal.SIGKILL), first.log
    # Its last phase may have been lost with it.
    said = r"rank 1 of 2 failed first: it was lost in [a-z]+: its process on node1 \(10\.0\.0\.2\) has ended"
    assert re.search(said, first.log), first.log


def _first_to_end(children: Sequence[Child]) -> Child:
    pidfds = {os.pidfd_open(child.pid): child for child in children}
    ended = wait(list(pidfds), LIMIT_S)
    for fd in pidfds:
        os.close(fd)
    return next(pidfds[fd] for fd in pidfds if fd in ended)


@needs_nodes
@pytest.mark.parametrize(
    ("places", "more", "said"),
    [
        ([0, 1], {"env": {"LOCAL_WORLD_SIZE": "2"}}, "is not on the node of rank 0, which expects all ranks there"),
        ([0, 0, 1, 1], {"env_of": {2: {"RANK": "3"}}}, "it has connected already, from node1 (10.0.0.2)."),
    ],
    ids=["no other node", "twice"],
)
def test_processes_that_cannot_take_part(cluster: Cluster, places: list[int], more: dict[str, Any], said: str) -> None:
    """If this fails, ranks wait for minutes for what cannot be, or who reaches rank 0's port reports results."""
    children = cluster.by_hand(places=places, **more)
    refused = _first_to_end(children[len(places) // 2 :])
    assert (refused.wait(), said in refused.log, "Traceback" in refused.log) == (2, True, False), refused.log
    # As a launcher does.
    for child in children:
        if child is not refused:
            child.send_signal(signal.SIGTERM)
            child.wait()
