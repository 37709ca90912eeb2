"""A launcher of one's own: one file that registers its isolation, and no change in the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_pytest, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import signal
    import pytest
    import torch
    import torch.distributed as dist

    RUNNER = os.getpid()

    @pytest.mark.distributed(world_size=2)
    def test_ranks_are_children_of_the_runner(world):
        assert os.getppid() == RUNNER
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2

    @pytest.mark.distributed(world_size=3, expected_exits={1: -9}, init=False)
    def test_a_rank_may_die(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.distributed(world_size=2)
    def test_a_rank_fails(world):
        assert world.rank == 0, "planted"
"""


@pytest.mark.parametrize("where", ["option", "marker"])
def test_an_isolation_of_a_conftest_runs_cases(starter: Starter, tmp_path: Path, where: str) -> None:
    """If this fails, a launcher for another scheduler needs changes all over the library."""
    write_file(tmp_path, "conftest.py", "from tests.support import direct_launcher\n\n__all__ = ['direct_launcher']\n")
    cases, options = _CASES, ["--dist-isolation=direct"]
    if where == "marker":
        cases, options = _CASES.replace("world_size=", 'isolation="direct", world_size='), []
    write_file(tmp_path, "test_cases.py", cases)
    ended = run_pytest(starter, tmp_path, "-rA", *options, "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert "2 passed" in ended.log, ended.log
    assert "1 failed" in ended.log, ended.log
    assert "rank 1 raised AssertionError: planted" in ended.log, ended.log


def test_a_launcher_that_lacks_what_a_case_needs_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a case that expects an exit code waits for one that its ranks cannot have."""
    launcher = """
    from dist_testing.core.launch.isolation import Isolation, register_isolation
    from tests.support.direct_launcher import DirectLauncher

    register_isolation(Isolation("no codes", DirectLauncher, has_exit_codes=False, can_debug=False))
    """
    write_file(tmp_path, "conftest.py", launcher)
    write_file(tmp_path, "test_cases.py", _CASES)
    ended = run_pytest(starter, tmp_path, "-rA", "--dist-isolation=no codes", "-k", "may_die", "test_cases.py")
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert 'expected_exits = {1: -9} with isolation "no codes"' in ended.log, ended.log
