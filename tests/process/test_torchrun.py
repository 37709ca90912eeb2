"""Attached worlds: ranks that torchrun started, or that look as if it had. Their sessions and reports."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dist_testing.core.events.event import CaseRecorded, RunEnded
from dist_testing.core.events.file import read_events
from tests.support.children import Ended, start_pytest, write_file
from tests.support.installed_torch import said_by_gloo
from tests.support.starter import Starter
from tests.support.torchrun_agent import Agent


def _assert_quiet(ended: Ended) -> None:
    assert ended.log == "", ended.log


_MIXED = """
    import os
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    import dist_testing

    here = Path(__file__).parent
    seen = []


    @pytest.fixture(scope="module")
    def of_module(tmp_path_factory):
        yield tmp_path_factory.mktemp("shared")
        (here / f"torn-down-{os.environ['RANK']}").touch()


    def test_plain():
        with open(here / "plain", "a") as file:
            file.write("ran\\n")


    @pytest.mark.distributed
    def test_sums(world, of_module, tmp_path):
        assert world.size == int(os.environ["WORLD_SIZE"]) == 2
        assert world.rank == int(os.environ["RANK"])
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        (of_module / "shared").touch()
        (world.tmp_path / str(world.rank)).touch()
        world.barrier()
        assert len(list(world.tmp_path.iterdir())) == 2


    @pytest.mark.distributed(init=False)
    def test_env(world, of_module):
        assert not (of_module / "shared").exists(), "each case has ranks of its own"
        dist.init_process_group("gloo", init_method="env://")
        dist.barrier()


    @pytest.mark.distributed(world_size=[2, 3])
    def test_sizes(world):
        pass


    @pytest.mark.distributed
    def test_fails(world):
        print("printed by", world.rank)
        left = [1, world.rank]
        if world.rank == 1:
            assert left == [1, 2]
        world.barrier()


    @pytest.mark.distributed
    def test_fails_in_group(world):
        if world.rank == 0:
            raise KeyError("planted")
        dist.barrier()


    @pytest.mark.distributed(timeout=4)
    def test_hangs(world):
        if world.rank == 1:
            import threading
            threading.Event().wait()
        dist.barrier()


    @pytest.mark.distributed
    def test_one_rank_skips(world):
        if world.rank == 1:
            pytest.skip("rank 1 alone")


    @pytest.mark.distributed
    def test_all_skip(world):
        pytest.skip("all of them")


    @pytest.mark.distributed
    @pytest.mark.xfail(reason="known", strict=True)
    def test_xfails(world):
        assert world.rank == 0


    @pytest.mark.skipif(os.environ.get("RANK") == "1", reason="rank 0 decides")
    @pytest.mark.distributed
    def test_marks_are_rank_0s(world):
        pass


    @pytest.mark.distributed(expected_exits={1: -9})
    def test_expects_an_end(world):
        if world.rank == 1:
            os.kill(os.getpid(), 9)


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
    def test_threads(world):
        pass


    class UnittestTest(dist_testing.MultiProcessTestCase):
        def setUp(self):
            super().setUp()
            with open(here / "set-up", "a") as file:
                file.write("ran\\n")
            self._spawn_processes()

        def test_method(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(2, total.item())

        def test_of_class_fails(self):
            self.assertEqual(0, self.rank)


    @pytest.mark.distributed
    def test_still_a_world(world):
        dist.barrier()
"""


def test_one_session_over_all_ranks(agent: Agent, tmp_path: Path) -> None:
    """If this fails, a failure costs more than one case, exit codes differ, or rank 0 reports wrong results."""
    first, second = agent.run(_MIXED, f"--junitxml={tmp_path / 'out.xml'}")
    assert first.outcomes() == {
        "test_plain": "PASSED",
        "test_sums": "PASSED",
        "test_env": "PASSED",
        "test_sizes[world_size=2]": "PASSED",
        "test_fails": "FAILED",
        "test_fails_in_group": "FAILED",
        "test_hangs": "FAILED",
        "test_one_rank_skips": "FAILED",
        "test_xfails": "XFAIL",
        "test_marks_are_rank_0s": "PASSED",
        "test_expects_an_end": "PASSED",
        "test_spawned": "PASSED",
        "test_pooled[1]": "PASSED",
        "test_pooled[2]": "PASSED",
        "test_method": "PASSED",
        "test_of_class_fails": "FAILED",
        "test_still_a_world": "PASSED",
    }, first.log
    assert first.code == second.code == pytest.ExitCode.TESTS_FAILED
    _assert_quiet(second)
    for said in (
        "world_size = 3; torchrun has started a world of 2",
        'isolation = "thread"; torchrun has started a process for each rank',
        "all of them",
        "assert [1, 1] == [1, 2]",
        f"output of rank 1:\n{said_by_gloo(1, 2)}printed by 1\n",
        "rank 0 raised KeyError: 'planted' in call",
        "ranks disagree about a skip: rank 0 passed; rank 1 skipped: rank 1 alone",
        "rank 1 of 2 failed first",
    ):
        assert said in first.log, said
    # With the ranks' ledgers, or without them on a busy machine.
    assert re.search(r"rank 1 (has not come yet|did not come to where the others waited)", first.log), first.log
    assert (tmp_path / "plain").read_text() == "ran\n", "a plain test runs once"
    assert (tmp_path / "set-up").read_text() == "ran\nran\n", "setUp runs in the runner, once per test"
    assert len(list(tmp_path.glob("torn-down-*"))) == 2
    cases = [case.get("name") for case in ElementTree.parse(tmp_path / "out.xml").iter("testcase")]
    assert len(cases) == len(set(cases)) == 20


def test_log_records_are_in_the_report(agent: Agent) -> None:
    """If this fails, records of a pooled rank go to the handler of an earlier case."""
    first, second = agent.run(
        """
        import logging

        import pytest

        own = logging.getLogger("own")
        own.propagate = False
        own.addHandler(logging.StreamHandler())


        @pytest.mark.distributed
        @pytest.mark.parametrize("case", [1, 2])
        def test_logs(world, case):
            own.warning("by its own handler in case %d", case)
            world.log.warning("in case %d", case)
            assert world.rank == 0
        """
    )
    for case in (1, 2):
        assert first.log.count(f"WARNING  dist_testing.rank1:test_cases.py:15 in case {case}\n") == 1, first.log
        assert first.log.count(f"by its own handler in case {case}\n") == 1, first.log
    _assert_quiet(second)


def test_selection_and_early_end_hold_for_all(agent: Agent) -> None:
    """If this fails, `-k`, `-x` or `-s`, which rank 0 decides, leave a rank waiting."""
    first, second = agent.run(_MIXED, "-x", "-s", "-k", "fails")
    assert list(first.outcomes()) == ["test_fails"]
    assert first.code == second.code == pytest.ExitCode.TESTS_FAILED
    assert "[rank 0] printed by 0\n" in first.log
    assert "[rank 1] printed by 1\n" in first.log
    first, second = agent.run(_MIXED, "-k", "nothing_of_this_name")
    assert first.code == second.code == pytest.ExitCode.NO_TESTS_COLLECTED
    first, second = agent.run(_MIXED, "--collect-only", "-q")
    assert first.code == 0, first.log
    assert "test_cases.py::test_sums" in first.log
    _assert_quiet(second)


def test_plain_tests_are_left_alone(agent: Agent) -> None:
    """If this fails, the installed plugin changes plain tests that users run under torchrun on every rank."""
    source = """
        import os

        def test_on_every_rank():
            assert os.environ["RANK"] == "0"
    """
    first, second = agent.run(source)
    assert (first.code, second.code) == (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), second.log
    assert second.outcomes() == {"test_on_every_rank": "FAILED"}


def test_incomplete_environment_is_refused_only_for_distributed_tests(starter: Starter, tmp_path: Path) -> None:
    """If this fails, RANK, set for another reason, breaks plain tests, or a distributed one gets no clear error."""
    plain = "def test_plain():\n    pass\n"
    write_file(tmp_path, "test_cases.py", plain)
    child = start_pytest(starter, tmp_path, "test_cases.py", env={"RANK": "3"})
    assert child.wait() == 0, child.log
    write_file(tmp_path, "test_cases.py", f"import pytest\n\n@pytest.mark.distributed\n{plain}")
    child = start_pytest(starter, tmp_path, "test_cases.py", env={"RANK": "3"})
    assert child.wait() == pytest.ExitCode.USAGE_ERROR, child.log
    assert "RANK=3 is set without WORLD_SIZE, MASTER_ADDR, MASTER_PORT." in child.log
    assert "Traceback" not in child.log


def test_rank_0_tells_the_events_of_all_ranks(agent: Agent, tmp_path: Path) -> None:
    """Every rank has the option, and one file is written; the phases in it are those of each rank."""
    source = """
        import pytest

        pytestmark = pytest.mark.distributed


        @pytest.mark.parametrize("number", range(2))
        def test_meets(world, number):
            world.barrier()
    """
    ended = agent.run(source, "--dist-events=events.jsonl.gz")
    assert [rank.code for rank in ended] == [0, 0], ended
    events = read_events(tmp_path / "events.jsonl.gz")
    assert isinstance(events[-1], RunEnded)
    cases = [event.record for event in events if isinstance(event, CaseRecorded)]
    assert [[rank.outcome for rank in case.ranks] for case in cases] == [["passed", "passed"]] * 2
    for rank in (rank for case in cases for rank in case.ranks):
        assert [phase.name for phase in rank.phases][:5] == ["start", "init", "setup", "call", "teardown"]
