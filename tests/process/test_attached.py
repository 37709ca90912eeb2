"""Attached worlds: the same cases by every launcher, and the one pytest session over all processes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dist_testing.core.events.event import CaseRecorded, RunEnded
from dist_testing.event_file import read_events
from tests.support.attached import CASES, Agent, assert_cases, wait_all
from tests.support.children import start_pytest, write_file
from tests.support.cluster import HAND, Cluster, needs_nodes
from tests.support.starter import Starter

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
