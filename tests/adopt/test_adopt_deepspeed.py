"""`-p dist_testing.adopt.deepspeed`: a suite on a model of DeepSpeed's harness, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import write_file
from tests.support.starter import Child, Starter

_HERE = Path(__file__).parent


def _run(starter: Starter, folder: Path) -> Child:
    options = ["-p", "deepspeed_harness", "-p", "dist_testing.adopt.deepspeed", "-rA", "test_suite.py"]
    child = starter.start(["-m", "pytest", *options], folder)
    child.wait()
    return child


def test_a_suite_has_the_verdicts_of_its_own_harness(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a setting of DeepSpeed's classes has another meaning on the engine, or none."""
    shutil.copy(_HERE / "deepspeed_harness.py", tmp_path)
    shutil.copy(_HERE / "deepspeed_suite.py", tmp_path / "test_suite.py")
    log = _run(starter, tmp_path).log
    passed = [line.rpartition("::")[2] for line in log.splitlines() if line.startswith("PASSED ")]
    assert passed == [
        "test_list",
        "test_mark",
        "test_parameter[2]",
        "test_parameters[dtype0]",
        "test_parameters[dtype1]",
        "test_fixture",
        "test_passes",
        "test_no_group",
        "test_first",
        "test_second",
    ], log
    assert "1 failed, 10 passed, 3 skipped" in log, log
    assert "TestValues.test_fails (world of 2): rank 1 raised AssertionError" in log
    for reason in ("on every rank", "by a queue", "only supported in accelerator environments."):
        assert reason in log, reason


_ENDS = """
    import os
    import time

    import pytest
    import torch.distributed as dist
    from deepspeed_harness import DistributedTest


    class TestEnds(DistributedTest):
        exec_timeout = 4

        def test_exits(self):
            if dist.get_rank() == 1:
                os._exit(0)

        def test_hangs(self):
            time.sleep(1000)

        def test_skips_on_one_rank(self):
            if dist.get_rank() == 1:
                pytest.skip("only here")

        def test_after(self):
            pass


    class TestOther:
        is_dist_test = True

        def test_unknown(self):
            pass
"""


def test_ends_that_the_own_harness_does_not_survive(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a rank that exits or hangs takes the session with it, or a skip of one rank hides the others."""
    shutil.copy(_HERE / "deepspeed_harness.py", tmp_path)
    write_file(tmp_path, "test_suite.py", _ENDS)
    child = _run(starter, tmp_path)
    log = child.log
    assert "PASSED test_suite.py::TestEnds::test_after" in log, log
    for said in (
        "rank 1 exited with code 0",
        "test_hangs (world of 2)",
        "ranks disagree about a skip",
        "has no _launch_daemonic_procs, _launch_non_daemonic_procs, _dist_run",
    ):
        assert said in log, said
    assert " passed" in log.splitlines()[-1], log
