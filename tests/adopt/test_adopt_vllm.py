"""`-p dist_testing.adopt.vllm`: a suite on a model of vLLM's test decorators, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_HERE = Path(__file__).parent
_OWN = """
    [pytest]
    markers = distributed: run this test only in distributed GPU tests
    dist_marker = ranks
"""


def _run(starter: Starter, folder: Path) -> Ended:
    shutil.copy(_HERE / "vllm_utils.py", folder)
    write_file(folder, "pytest.ini", _OWN)
    plugins = [f"-pdist_testing.{name}" for name in ("core.pytest.plugin", "adopt.vllm", "adopt.spawn")]
    child = starter.start(["-m", "pytest", *plugins, "-rA", "test_suite.py"], folder)
    return Ended(child.wait(), child.log)


def test_a_suite_has_the_verdicts_of_its_own_harness(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a decorated test runs in another way than under its own harness, or one of its holes is back."""
    shutil.copy(_HERE / "vllm_suite.py", tmp_path / "test_suite.py")
    _run(starter, tmp_path).check(
        passed="test_fork test_parameters[one] test_parameters[two] test_environment_is_not_changed "
        "test_parallel[test_target0-2] test_parallel_in_a_process test_torch_spawn test_engine_is_left_running "
        "test_method",
        # The own harness passes the last three, and one more, which skips.
        failed="test_fails test_dies test_parallel_fails "
        "test_hole_exit_0 test_hole_spawn_ran_nothing test_hole_spawn_with_arguments[spawn]",
        log=[
            "2 skipped",
            "Need at least 4 GPUs to run the test.",
            "not on this platform",
            "test_fails (world of 1): rank 0 raised ValueError: planted",
            "rank 0 was killed by SIGKILL (9)",
            "failing_worker (world of 2): rank 1 raised AssertionError: planted",
            "Victims: rank 0",
            "rank 0 exited with code 0 in call",
            "rank 0 raised ValueError: never reached",
        ],
    )


def test_what_cannot_be_adopted_says_why(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test runs under a harness that hides failures, and no text says so."""
    source = """
        import pytest
        import torch.distributed as dist
        from vllm_utils import spawn_new_process_for_each_test


        @pytest.fixture
        def group():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            yield
            dist.destroy_process_group()


        @spawn_new_process_for_each_test
        def test_with_a_group(group):
            pass


        def test_other_version():
            import other_utils
    """
    write_file(tmp_path, "test_suite.py", source)
    write_file(tmp_path, "other_utils.py", "def create_new_process_for_each_test(method=None): ...\n")
    _run(starter, tmp_path).check(
        failed="test_with_a_group test_other_version",
        log=[
            "cannot be forked from pytest's process: a process group is initialised",
            "Move that use into tests that run on ranks",
            "other_utils defines create_new_process_for_each_test, but neither",
        ],
    )
