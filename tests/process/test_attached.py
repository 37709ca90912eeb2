"""Attached worlds: the same cases by every launcher, one pytest session over all processes, and processes that end."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dist_testing.core.events.event import CaseRecorded, RunEnded
from dist_testing.event_file import read_events
from tests.support.attached import CASES, DOWN, Agent, assert_cases, assert_down, wait_all
from tests.support.bell import Bell
from tests.support.children import start_pytest, write_file
from tests.support.cluster import HAND, Cluster, needs_nodes
from tests.support.starter import LIMIT_S, Child, Starter

# Without the first option torchrun takes a port that the next torchrun also wants.
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=4")
_PYTEST = ("-m", "pytest", "-p", "dist_testing.core.pytest.plugin", "--color=no", "-rA", "--junitxml=out.xml")


def test_every_cell_of_torchrun(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the documented command gives another verdict or culprit, or a success for a failure."""
    main = "if __name__ == '__main__':\n    __import__('dist_testing').run_tests()\n"
    write_file(tmp_path, "test_cases.py", textwrap.dedent(CASES) + main)
    (ended,) = wait_all([starter.start([*_TORCHRUN, "test_cases.py", "-rA", "--junitxml=out.xml"], tmp_path)])
    assert ended.code != 0, ended.log
    assert_cases(ended.log, tmp_path / "out.xml")


@needs_nodes
@pytest.mark.parametrize("launcher", ["PET", "hand", "hydra"])
def test_every_cell_on_two_nodes(starter: Starter, tmp_path: Path, launcher: str) -> None:
    """If this fails, ranks of another node cannot report, or there are two reports, another verdict or culprit."""
    write_file(tmp_path, "test_cases.py", CASES)
    hydra = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")
    with Cluster(starter, tmp_path) as cluster:
        if launcher == "PET":
            started = cluster.torchrun(*_PYTEST, "test_cases.py")
        else:
            names = hydra if launcher == "hydra" else HAND
            started = cluster.by_hand("--junitxml=out.xml", places=[0, 0, 1, 1], names=names)
        ended = wait_all(started)
    assert [one.code for one in ended] == [1] * len(ended), ended[0].log
    # Of torchrun's agents, either may have rank 0.
    assert_cases("".join(one.log for one in ended), tmp_path / "out.xml")
    for one in ended[1:] if launcher != "PET" else []:
        # torch warns that the names of the nodes have no addresses.
        assert [line for line in one.log.splitlines() if "hostname of the client socket" not in line] == []


_SESSION = """
    import os
    from pathlib import Path
    import pytest
    import torch.distributed as dist
    import dist_testing

    here = Path(__file__).parent
    seen = []

    def test_plain():
        with open(here / "plain", "a") as file:
            file.write("ran\\n")

    @pytest.mark.distributed(init=False)
    def test_env(world):
        dist.init_process_group("gloo", init_method="env://")
        dist.barrier()

    @pytest.mark.distributed(world_size=[2, 3])
    def test_sizes(world): ...

    @pytest.mark.distributed(timeout=300)
    def test_fails_by_a_proven_hang(world):
        print("printed by", world.rank)
        if world.rank != 1:
            dist.barrier()

    @pytest.mark.distributed
    def test_one_rank_skips(world):
        if world.rank == 1:
            pytest.skip("rank 1 alone")

    @pytest.mark.skipif(os.environ.get("RANK") == "1", reason="rank 0 decides")
    @pytest.mark.distributed
    def test_marks_are_rank_0s(world): ...

    @pytest.mark.distributed(isolation="spawn")
    def test_spawned(world):
        dist.barrier()

    @pytest.mark.distributed(isolation="pool")
    @pytest.mark.parametrize("case", [1, 2])
    def test_pooled(world, case):
        dist.barrier()
        seen.append(case)
        assert seen == list(range(1, case + 1)), "the ranks stay"

    @pytest.mark.distributed(isolation="thread")
    def test_threads(world): ...

    class UnittestTest(dist_testing.MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            with open(here / "set-up", "a") as file:
                file.write("ran\\n")
            self._spawn_processes()

        def test_method(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            dist.barrier()
"""


def test_one_session_over_all_ranks(agent: Agent, tmp_path: Path) -> None:
    """If this fails, rank 0 reports wrong results, exit codes differ, or another rank prints or writes."""
    # Nothing of the library may warn either.
    first, second = agent.run(_SESSION, "-W", "error", "--junitxml=out.xml", "--dist-events=events.jsonl.gz")
    first.check(
        passed="test_plain test_env test_sizes[world_size=2] test_marks_are_rank_0s test_spawned test_pooled[1]"
        " test_pooled[2] test_method",
        failed="test_fails_by_a_proven_hang test_one_rank_skips",
    )
    assert (first.code, second.code, second.log) == (1, 1, "")
    for said in (
        "world_size = 3; torchrun has started a world of 2",
        'isolation = "thread"; torchrun has started a process for each rank',
        "ranks disagree about a skip: rank 0 passed; rank 1 skipped: rank 1 alone",
        "rank 1 ended the test; rank 0 waits for it in barrier #1 of the default group",
        "It is proven that no rank could ever go on",
        "--dist-world-size=2 test_cases.py::test_one_rank_skips\n",
    ):
        assert said in first.log, said
    assert (tmp_path / "plain").read_text() == (tmp_path / "set-up").read_text() == "ran\n", "once, in the runner"
    cases = [case.get("name") for case in ElementTree.parse(tmp_path / "out.xml").iter("testcase")]
    assert len(cases) == len(set(cases)) == 12
    events = read_events(tmp_path / "events.jsonl.gz")
    assert isinstance(events[-1], RunEnded)
    records = {event.record.name: event.record for event in events if isinstance(event, CaseRecorded)}
    for rank in next(record for name, record in records.items() if name.endswith("test_env")).ranks:
        assert {"start", "setup", "call", "teardown"} <= {phase.name for phase in rank.phases}


def test_selection_and_early_end_hold_for_all(agent: Agent) -> None:
    """If this fails, `-k`, `-x` or `-s`, which rank 0 decides, leave a rank waiting."""
    first, second = agent.run(_SESSION, "-x", "-s", "-k", "fails")
    assert list(first.outcomes()) == ["test_fails_by_a_proven_hang"]
    assert (first.code, second.code) == (1, 1)
    assert "[rank 0] printed by 0\n" in first.log
    assert "[rank 1] printed by 1\n" in first.log
    assert [one.code for one in agent.run(_SESSION, "-k", "nothing_of_this_name")] == [5, 5]
    first, second = agent.run(_SESSION, "--collect-only", "-q")
    assert (first.code, second.log) == (0, ""), first.log
    assert "test_cases.py::test_env" in first.log


def test_plain_tests_are_left_alone(agent: Agent, starter: Starter, tmp_path: Path) -> None:
    """If this fails, plain tests under torchrun change, or RANK, set for another reason, is no error."""
    source = "import os\n\ndef test_on_every_rank():\n    assert os.environ['RANK'] == '0'\n"
    first, second = agent.run(source)
    assert (first.code, second.code, second.outcomes()) == (0, 1, {"test_on_every_rank": "FAILED"}), second.log
    write_file(tmp_path, "test_cases.py", "import pytest\n\n@pytest.mark.distributed\ndef test_plain():\n    pass\n")
    child = start_pytest(starter, tmp_path, "test_cases.py", env={"RANK": "3"})
    assert child.wait() == pytest.ExitCode.USAGE_ERROR, child.log
    assert "RANK=3 is set without WORLD_SIZE, MASTER_ADDR, MASTER_PORT." in child.log
    assert "Traceback" not in child.log


def test_options_without_meaning_are_refused(agent: Agent) -> None:
    """If this fails, an option without meaning under torchrun is accepted, or only one rank refuses it."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    for options, said in (
        (["-p", "xdist", "-n", "2"], "-n (pytest-xdist) under torchrun."),
        (["--dist-debug-rank=0"], "--dist-debug-rank=0 under torchrun."),
    ):
        for ended in agent.run(_SESSION, *options):
            assert (ended.code, "Traceback" in ended.log) == (pytest.ExitCode.USAGE_ERROR, False), ended.log
            assert said in ended.log


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
        ([1, 0], signal.SIGINT, [2, 2], ["Rank 1 was in call and was stopped by the runner", "KeyboardInterrupt"]),
    ],
    ids=["another is killed", "rank 0 is killed", "all are stopped", "Ctrl-C"],
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
    assert (tmp_path / "out.xml").exists() == (victims != [0])
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
