"""`-p dist_testing.adopt.deepspeed`: a suite on a model of DeepSpeed's harness, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_HERE = Path(__file__).parent


def _run(starter: Starter, folder: Path) -> Ended:
    shutil.copy(_HERE / "deepspeed_harness.py", folder)
    options = ["-p", "deepspeed_harness", "-p", "dist_testing.adopt.deepspeed", "-rA", "test_suite.py"]
    child = starter.start(["-m", "pytest", *options], folder)
    return Ended(child.wait(), child.log)


def test_a_suite_has_the_verdicts_of_its_own_harness(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a setting of DeepSpeed's classes has another meaning on the engine, or none."""
    shutil.copy(_HERE / "deepspeed_suite.py", tmp_path / "test_suite.py")
    _run(starter, tmp_path).check(
        passed="test_list test_mark test_parameter[2] test_parameters[dtype0] test_parameters[dtype1] test_fixture "
        "test_passes test_no_group test_first test_second",
        failed="test_fails",
        log=[
            "1 failed, 10 passed, 3 skipped",
            "TestValues.test_fails (world of 2): rank 1 raised AssertionError",
            "on every rank",
            "by a queue",
            "only supported in accelerator environments.",
        ],
    )


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
    write_file(tmp_path, "test_suite.py", _ENDS)
    _run(starter, tmp_path).check(
        passed="test_after",
        failed="test_exits test_hangs test_skips_on_one_rank test_unknown",
        log=[
            "rank 1 exited with code 0",
            "test_hangs (world of 2)",
            "ranks disagree about a skip",
            "has no _launch_daemonic_procs, _launch_non_daemonic_procs, _dist_run",
        ],
    )
