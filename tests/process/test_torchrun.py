"""Attached worlds: ranks that torchrun started, or that look as if it had."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from torch._C._distributed_c10d import TCPStore

from dist_testing.events.cases import RankOutcomeKnown, RankPhases
from dist_testing.events.file import read_events
from dist_testing.events.runs import RunEnded
from tests.support.bell import Bell
from tests.support.children import Ended, assert_no_folder_left, start_pytest, write_file
from tests.support.starter import Child, Starter


class Agent:
    """Plays torchrun's agent for its ranks: a store, and variables with its address."""

    def __init__(self, starter: Starter, folder: Path) -> None:
        self._starter = starter
        self._folder = folder
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(
        self, size: int, *options: str, sources: dict[int, str] | None = None, env: Mapping[str, str] | None = None
    ) -> list[Child]:
        """Start the ranks; each of `sources` replaces test_cases.py for its rank."""
        children = []
        for rank in range(size):
            file = "test_cases.py"
            if sources and rank in sources:
                write_file(self._folder / f"of-{rank}", file, sources[rank])
                file = f"of-{rank}/{file}"
            rank_env = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": "run",
                "TORCHELASTIC_RESTART_COUNT": "0",
                # The agent's address, on machines whose name has none.
                "GLOO_SOCKET_IFNAME": "lo",
            }
            children.append(
                start_pytest(self._starter, self._folder, "-rA", *options, file, env={**rank_env, **(env or {})})
            )
        return children

    def run(self, source: str, *options: str, size: int = 2) -> list[Ended]:
        """Run a file on every rank to its end, and check that nothing is left."""
        write_file(self._folder, "test_cases.py", source)
        ended = [Ended(child.wait(), child.log) for child in self.start(size, *options)]
        assert_no_folder_left(self._folder)
        return ended


@pytest.fixture
def agent(starter: Starter, tmp_path: Path) -> Agent:
    """Starts the ranks of a test."""
    return Agent(starter, tmp_path)


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


    @pytest.fixture(scope="module")
    def of_module(tmp_path_factory):
        yield tmp_path_factory.mktemp("shared")
        (here / f"torn-down-{os.getpid()}").touch()


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
        assert (of_module / "shared").exists(), "the fixture belongs to the module"
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


    @pytest.mark.distributed(timeout=1)
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
        os.kill(os.getpid(), 9)


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
        "test_method": "PASSED",
        "test_of_class_fails": "FAILED",
        "test_still_a_world": "PASSED",
    }, first.log
    assert first.code == second.code == pytest.ExitCode.TESTS_FAILED
    _assert_quiet(second)
    for said in (
        "world_size = 3; torchrun has started a world of 2",
        "expected_exits: if a rank ends, torchrun ends the whole world",
        "all of them",
        "assert [1, 1] == [1, 2]",
        "output of rank 1:\nprinted by 1\n",
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
    assert len(cases) == len(set(cases)) == 16


_DIES = """
    import ctypes
    import os
    import time

    import pytest
    import torch.distributed as dist

    @pytest.mark.distributed
    def test_before(world):
        pass

    @pytest.mark.distributed
    def test_dies(world):
        if world.rank == 1:
            print("last words")
            {death}
        {wait}

    @pytest.mark.distributed
    def test_after(world):
        pass
"""


@pytest.mark.parametrize(
    ("death", "wait"),
    [
        ("os.kill(os.getpid(), 9)", "dist.barrier()"),
        ("os._exit(0)", "world.barrier()"),
        ("ctypes.string_at(0)", "time.sleep(1000)"),
    ],
    ids=["killed, others in the group", "exit 0, others in the store", "segfault, others asleep"],
)
def test_rank_that_dies_ends_the_run_with_a_report(agent: Agent, tmp_path: Path, death: str, wait: str) -> None:
    """If this fails, a rank's death leaves the others waiting, or torchrun sees no failure."""
    first, *_ = agent.run(_DIES.format(death=death, wait=wait), f"--junitxml={tmp_path / 'out.xml'}")
    assert first.outcomes() == {"test_before": "PASSED", "test_dies": "FAILED"}, first.log
    assert first.code == pytest.ExitCode.TESTS_FAILED
    assert "rank 1 of 2 failed first: it ended in call; its exit status is known only to its parent" in first.log
    assert "last words" in first.log
    assert "Victims: rank 0" in first.log
    assert "Rank(s) 1 of torchrun's world have ended." in first.log
    assert len(list(ElementTree.parse(tmp_path / "out.xml").iter("testcase"))) == 2


def test_termination_ends_the_run_without_blaming_a_rank(agent: Agent, tmp_path: Path) -> None:
    """If this fails, ranks that wait in native code stay after torchrun was stopped, or a test is blamed."""
    write_file(
        tmp_path,
        "test_cases.py",
        """
        import pytest
        import torch.distributed as dist

        from tests.support.bell import ring

        @pytest.mark.distributed
        def test_waits(world):
            ring("here")
            world.store.get("never set")

        @pytest.mark.distributed
        def test_after(world):
            pass
        """,
    )
    with Bell(tmp_path) as bell:
        children = agent.start(2, f"--junitxml={tmp_path / 'out.xml'}", env=bell.env)
        bell.wait(2, children[0])
        for child in children:
            child.send_signal(signal.SIGTERM)
        codes = [child.wait() for child in children]
    assert codes == [pytest.ExitCode.INTERRUPTED] * 2, children[0].log
    assert "torchrun has stopped the run" in children[0].log
    assert "FAILED" not in children[0].log
    assert (tmp_path / "out.xml").exists()
    assert_no_folder_left(tmp_path)


def test_end_of_rank_0_ends_the_others(agent: Agent) -> None:
    """If this fails, the other ranks wait for ever for rank 0, which is the runner. They can report only its end."""
    first, second = agent.run(_DIES.format(death="world.barrier()", wait="os.kill(os.getpid(), 9)"))
    assert first.code == -9
    assert second.code == pytest.ExitCode.INTERRUPTED, second.log
    assert "rank 1: Rank 0 has ended before the run was over." in second.log
    assert "Traceback" not in second.log


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


def test_rank_with_other_tests_is_reported(agent: Agent, tmp_path: Path) -> None:
    """If this fails, the peers of a rank with other tests wait for it in the first collective."""
    write_file(tmp_path, "test_cases.py", _DIES.format(death="pass", wait="pass"))
    children = agent.start(2, "-k", "before", sources={1: "import nothing_of_this_name\n"})
    codes = [child.wait() for child in children]
    assert codes == [1, 1], children[0].log
    assert "This rank has not collected test_cases.py::test_before." in children[0].log
    assert "No module named 'nothing_of_this_name'" in children[0].log


def test_rank_that_exits_with_0_while_it_imports_ends_the_wait_for_it(agent: Agent) -> None:
    """If this fails, rank 0 waits five minutes for a rank that has ended, and torchrun sees no failure in it."""
    source = """
    import os

    import pytest

    if os.environ["RANK"] == "1":
        os._exit(0)


    @pytest.mark.distributed
    def test_nothing(world):
        pass
    """
    rank_0, rank_1 = agent.run(source)
    assert rank_1.code == 0
    assert rank_0.code != 0
    assert "Rank(s) 1 of 2 ended before they connected." in rank_0.log


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


def test_options_without_meaning_are_refused(agent: Agent) -> None:
    """If this fails, an option without meaning under torchrun is accepted, or only one rank refuses it."""
    for options, said in (
        (["-p", "xdist", "-n", "2"], "-n (pytest-xdist) under torchrun."),
        (["--dist-debug-rank=0"], "--dist-debug-rank=0 under torchrun."),
    ):
        if "xdist" in options:
            pytest.importorskip("xdist", reason="pytest-xdist is not installed")
        for ended in agent.run(_DIES, *options):
            assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
            assert said in ended.log
            assert "Traceback" not in ended.log


def test_torchrun_itself(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the documented command does not work with pytest or unittest files, or with a killed rank."""
    write_file(tmp_path, "pytest.ini", "[pytest]\naddopts = -p dist_testing.frontends.pytest.plugin --color=no\n")
    write_file(tmp_path, "test_cases.py", _DIES.format(death="os.kill(os.getpid(), 9)", wait="world.barrier()"))
    write_file(
        tmp_path,
        "test_unit.py",
        """
        import torch.distributed as dist

        import dist_testing

        class UnittestTest(dist_testing.MultiProcessTestCase):
            def test_size(self):
                self.assertEqual(2, self.world_size)

        if __name__ == "__main__":
            dist_testing.run_tests()
        """,
    )
    # Without it torchrun takes a port that the next torchrun also wants.
    own = ["--standalone", "--local-addr=127.0.0.1"]
    torchrun = ["-m", "torch.distributed.run", *own, "--nproc-per-node=2"]
    child = starter.start([*torchrun, "-m", "pytest", "-rA", "test_cases.py"], tmp_path)
    assert child.wait() == 1, child.log
    assert Ended(1, child.log).outcomes() == {"test_before": "PASSED", "test_dies": "FAILED"}, child.log
    assert child.log.count("rank 1 of 2 failed first") == 1
    assert "SIGKILL" in child.log

    child = starter.start([*torchrun, "test_unit.py", "-rA"], tmp_path)
    assert child.wait() == 0, child.log
    assert Ended(0, child.log).outcomes() == {"test_size": "PASSED"}, child.log
    assert_no_folder_left(tmp_path)


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
    outcomes = [(event.case, event.rank, event.outcome) for event in events if isinstance(event, RankOutcomeKnown)]
    assert outcomes == [(case, rank, "passed") for case in (1, 2) for rank in (0, 1)]
    phases = [event for event in events if isinstance(event, RankPhases)]
    assert [(event.case, event.rank) for event in phases] == [(case, rank) for case in (1, 2) for rank in (0, 1)]
    for event in phases:
        assert [phase.name for phase in event.phases][:5] == ["start", "init", "setup", "call", "teardown"]


_LOCKS_UP = """
    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.distributed(timeout=300)
    def test_returns_early(world):
        if world.rank != 1:
            dist.all_reduce(torch.ones(3))


    @pytest.mark.distributed(timeout=300)
    def test_still_a_world(world):
        dist.barrier()
"""


def test_hang_of_attached_ranks_is_proven(agent: Agent) -> None:
    """If this fails, ranks that lock up keep an allocation of a cluster until the limit of the case."""
    first, _ = agent.run(_LOCKS_UP)
    assert first.outcomes() == {"test_returns_early": "FAILED", "test_still_a_world": "PASSED"}, first.log
    assert (
        "rank 1 ended the test; rank 0 waits for it in all_reduce #1 of the default group (test_cases.py:10)"
        in first.log
    )
    assert "It is proven that no rank could ever go on" in first.log
