"""Attached worlds whose ranks die, hang, end early or cannot run the tests; and torchrun itself."""

from __future__ import annotations

import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.bell import Bell
from tests.support.children import Ended, assert_no_folder_left, write_file
from tests.support.starter import Starter
from tests.support.torchrun_agent import Agent

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

# Without the first option torchrun takes a port that the next torchrun also wants.
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")


@pytest.mark.parametrize(
    ("death", "wait", "end"),
    [
        ("os.kill(os.getpid(), 9)", "dist.barrier()", "was killed by SIGKILL (9) in call"),
        ("os._exit(0)", "world.barrier()", "exited with code 0 in call, without finishing the test"),
        ("os._exit(3)", "world.barrier()", "exited with code 3 in call"),
        ("ctypes.string_at(0)", "time.sleep(1000)", "was killed by SIGSEGV (11) in call"),
    ],
    ids=["killed, others in the group", "exit 0, others in the store", "exit 3", "segfault, others asleep"],
)
def test_rank_that_dies_costs_one_case(agent: Agent, death: str, wait: str, end: str) -> None:
    """If this fails, a rank's death leaves the others waiting, is told without its exit code, or ends the run."""
    first, second = agent.run(_DIES.format(death=death, wait=wait))
    assert first.outcomes() == {"test_before": "PASSED", "test_dies": "FAILED", "test_after": "PASSED"}, first.log
    assert first.code == second.code == pytest.ExitCode.TESTS_FAILED
    assert f"rank 1 of 2 failed first: it {end}" in first.log
    assert "Victims: rank 0" in first.log
    assert ("Native stack of the thread that got SIGSEGV" in first.log) == ("SIGSEGV" in end)
    assert "last words" in first.log or "_exit" in death


def test_launched_process_that_dies_ends_the_run_with_a_report(agent: Agent, tmp_path: Path) -> None:
    """Its rank cannot be replaced. If this fails, the others wait, or its fork server and rank stay."""
    death = "os.kill(psutil.Process().parents()[1].pid, 9); time.sleep(1000)"
    source = _DIES.format(death=f"import psutil; {death}", wait="dist.barrier()")
    first, second = agent.run(source, f"--junitxml={tmp_path / 'out.xml'}")
    assert first.outcomes() == {"test_before": "PASSED", "test_dies": "FAILED"}, first.log
    assert (first.code, second.code) == (pytest.ExitCode.TESTS_FAILED, -9)
    assert "rank 1 of 2 failed first: it was lost in call: the process that torchrun started for it has" in first.log
    assert "The process(es) of rank(s) 1 of torchrun's world are lost" in first.log
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
    assert "the runner got SIGTERM" in children[0].log
    assert "FAILED" not in children[0].log
    assert (tmp_path / "out.xml").exists()
    assert_no_folder_left(tmp_path)


def test_end_of_rank_0_ends_the_others(agent: Agent) -> None:
    """If this fails, the other ranks wait for ever for rank 0, which is the runner. They can report only its end."""
    wait = "import psutil; os.kill(psutil.Process().parents()[1].pid, 9); time.sleep(1000)"
    first, second = agent.run(_DIES.format(death="world.barrier()", wait=wait))
    assert first.code == -9
    assert second.code == pytest.ExitCode.INTERRUPTED, second.log
    assert "rank 1: Rank 0 has ended before the run was over." in second.log
    assert "Traceback" not in second.log


def test_rank_with_other_tests_is_reported(agent: Agent, tmp_path: Path) -> None:
    """If this fails, the peers of a rank with other tests wait for it in the first collective."""
    write_file(tmp_path, "test_cases.py", _DIES.format(death="pass", wait="pass"))
    children = agent.start(2, "-k", "before", sources={1: "import nothing_of_this_name\n"})
    codes = [child.wait() for child in children]
    assert codes == [1, 1], children[0].log
    assert (
        "dist_testing: rank 1 has not collected the tests of rank 0: rank 0 has test_cases.py::test_before, "
        "and rank 1 does not"
    ) in children[0].log
    assert "This rank has not collected test_cases.py::test_before." in children[0].log
    assert "No module named 'nothing_of_this_name'" in children[0].log


_ONE_IS_GONE = pytest.mark.parametrize(
    ("gone", "said"),
    [
        (1, "Rank(s) 1 of 2 ended before they connected."),
        (0, "Rank 1 of 2 has not found rank 0: it has ended before this rank could connect"),
    ],
)


@_ONE_IS_GONE
@pytest.mark.parametrize("file", ["conftest.py", "test_cases.py"])
def test_rank_that_exits_with_0_while_it_imports_ends_the_wait_for_it(
    starter: Starter, tmp_path: Path, file: str, gone: int, said: str
) -> None:
    """If this fails, a rank waits five minutes for one that has ended, and torchrun sees no failure in it."""
    sources = {
        "conftest.py": "",
        "test_cases.py": "import pytest\n\n\n@pytest.mark.distributed\ndef test_nothing(world):\n    pass\n",
    }
    sources[file] = f"import os\n\nif os.environ['RANK'] == '{gone}':\n    os._exit(0)\n{sources[file]}"
    for name, source in sources.items():
        write_file(tmp_path, name, source)
    child = starter.start(
        [*_TORCHRUN, "-m", "pytest", "-p", "dist_testing.core.pytest.plugin", "test_cases.py"], tmp_path
    )
    assert child.wait() != 0, child.log
    assert said in child.log


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
    """If this fails, the documented command does not work with unittest files."""
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
    child = starter.start([*_TORCHRUN, "test_unit.py", "-rA"], tmp_path)
    assert child.wait() == 0, child.log
    assert Ended(0, child.log).outcomes() == {"test_size": "PASSED"}, child.log
    assert_no_folder_left(tmp_path)


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
