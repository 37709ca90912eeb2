"""`-p dist_testing.adopt.jax`: a suite on a model of JAX's `MultiProcessTest`, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_HERE = Path(__file__).parent


def _run(starter: Starter, folder: Path, *options: str) -> Ended:
    shutil.copytree(_HERE / "stand_in", folder, dirs_exist_ok=True)
    child = starter.start(["-m", "pytest", "-p", "dist_testing.adopt.jax", "-rA", "suite_test.py", *options], folder)
    return Ended(child.wait(), child.log)


def test_each_test_has_a_verdict_over_all_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a result of one process hides that of another, or a dead process takes results with it."""
    shutil.copy(_HERE / "jax_suite.py", tmp_path / "suite_test.py")
    ended = _run(starter, tmp_path, "--jax-gpus-per-process=1", "--jax-flag=--seed=7")
    assert ended.outcomes() == {
        "test_a_world": "PASSED",
        "test_b_flags": "PASSED",
        "test_c_fails": "FAILED",
        "test_d_error_in_a_sub_test": "FAILED",
        "test_f_skips_on_one_rank": "FAILED",
        "test_g_expected": "PASSED",
        "test_h_after": "PASSED",
        "test_never_runs": "FAILED",
        "test_runs": "FAILED",
        "test_a_dies": "FAILED",
        "test_b_later": "FAILED",
        "test_not_on_ranks": "PASSED",
    }, ended.log
    for said in (
        "no such device",
        "by a mark of pytest",
        "WorldTest.test_c_fails (world of 2): rank 1 failed first: AssertionError: planted",
        "rank 0 of 2",
        "ValueError: in a part",
        "ranks disagree about a skip: rank 1 skipped (only here); rank 0 passed",
        "ValueError: setup of the class",
        "ValueError: teardown of the class",
        "suite_test.py (world of 2): rank 1 was killed by SIGKILL (9)",
        "DyingTest.test_b_later (world of 2) has not run: its world ended in an earlier test of the file.",
    ):
        assert said in ended.log, f"{said}\n{ended.log}"


def test_wrong_options_and_flags(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a wrong number or flag gives a traceback of pytest, or is ignored."""
    source = """
        from jax._src.test_multiprocess import MultiProcessTest


        class Test(MultiProcessTest):
            def test_nothing(self): ...
    """
    write_file(tmp_path, "suite_test.py", source)
    ended = _run(starter, tmp_path, "--jax-processes=two")
    assert "--jax-processes" in ended.log
    assert "Write --jax-processes=4, for example." in ended.log
    assert "Traceback" not in ended.log
    ended = _run(starter, tmp_path, "--jax-flag=--sead=7")
    assert ended.outcomes() == {"test_nothing": "FAILED"}, ended.log
    assert "Unknown command line flag 'sead'" in ended.log
