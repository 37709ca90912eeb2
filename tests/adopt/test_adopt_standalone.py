"""`-p dist_testing.adopt.standalone`: a suite on a model of Lightning's standalone tests, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_HERE = Path(__file__).parent


def _run(starter: Starter, folder: Path, *options: str) -> Ended:
    shutil.copy(_HERE / "standalone_harness.py", folder)
    plugins = ["-p", "standalone_harness", "-p", "dist_testing.adopt.standalone"]
    child = starter.start(["-m", "pytest", *plugins, "-rA", "test_suite.py", *options], folder)
    return Ended(child.wait(), child.log)


def test_a_suite_has_the_verdicts_of_its_own_harness(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a rank that Lightning's launcher asks for runs in another way than in a process of its own."""
    shutil.copy(_HERE / "standalone_suite.py", tmp_path / "test_suite.py")
    ended = _run(starter, tmp_path)
    assert ended.outcomes() == {
        "test_all_reduce[1]": "PASSED",
        "test_all_reduce[2]": "PASSED",
        # More ranks than were forked at first.
        "test_all_reduce[3]": "PASSED",
        "test_without_ranks": "PASSED",
        "test_expected": "XFAIL",
        "test_expected_passes": "FAILED",
        "test_fails[0]": "FAILED",
        "test_fails[1]": "FAILED",
        "test_dies": "FAILED",
        # The own harness passes this one.
        "test_hole_unobserved_rank": "FAILED",
    }, ended.log
    for said in (
        "2 skipped",
        ": in the test",
        "[XPASS(strict)]",
        "Requires: [GPUs>=2]",
        "test_fails[0] (world of 2): rank 0 raised AssertionError: planted",
        "test_fails[1] (world of 2): rank 1 raised AssertionError: planted",
        "rank 1 was killed by SIGKILL (9)",
        "rank 1 raised AssertionError: planted late",
    ):
        assert said in ended.log, ended.log


def test_what_cannot_be_adopted_says_why(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test starts the whole suite again as its second rank, or its ranks share a process group."""
    source = """
        import os
        import subprocess
        import sys

        import pytest
        import torch.distributed as dist
        from standalone_harness import RunIf


        @RunIf(standalone=True)
        def test_reads_its_ranks():
            env = {**os.environ, "LOCAL_RANK": "1"}
            subprocess.Popen([sys.executable, "-m", "pytest", *sys.argv[1:]], env=env, stdout=subprocess.PIPE)


        @RunIf(standalone=True)
        def test_after_a_group():
            pass


        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_call(item):
            if item.name == "test_after_a_group":
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    """
    write_file(tmp_path, "test_suite.py", source)
    ended = _run(starter, tmp_path, "-p", "test_suite")
    assert ended.outcomes() == {"test_reads_its_ranks": "FAILED", "test_after_a_group": "FAILED"}, ended.log
    assert "it starts rank 1 of itself with the arguments ['stdout']" in ended.log
    assert "its ranks cannot be forked from pytest's process: a process group is initialised" in ended.log
