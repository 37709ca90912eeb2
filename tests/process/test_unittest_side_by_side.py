"""One test file, run on torch's `MultiProcessTestCase` and on ours: changing the import must not change outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import write_file
from tests.support.starter import Starter

_CASES = """
    import functools
    import json
    import os
    import signal
    import sys
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist

    if os.environ["BASE"] == "torch":
        from torch.testing._internal.common_distributed import TEST_SKIPS, MultiProcessTestCase
    else:
        from dist_testing import TEST_SKIPS, MultiProcessTestCase

    def decorated(function):
        @functools.wraps(function)
        def wrapper(self):
            return function(self)

        return wrapper

    class TestBoth(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            os.environ["OF_THE_MOMENT"] = "set"
            if os.environ["BASE"] == "torch":
                # As torch's `_spawn_processes`, but forked: a fresh interpreter per rank takes seconds.
                self._start_processes(torch.multiprocessing.get_context("fork").Process)
            else:
                self._spawn_processes()
            test = getattr(self, self._testMethodName)
            if "any_code" in self._testMethodName:
                self.skip_return_code_checks = [test.__wrapped__]
            if "abort_code" in self._testMethodName:
                self.special_return_code_checks = {test.__wrapped__: signal.SIGABRT}

        def tearDown(self):
            super().tearDown()
            Path(self.file_name).unlink(missing_ok=True)

        def test_collective(self):
            self.assertEqual(os.environ["OF_THE_MOMENT"], "set")
            self.assertFalse(dist.is_initialized())
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            total = torch.ones(2)
            dist.all_reduce(total)
            self.assertEqual(total, torch.full((2,), 2.0), msg="sum")
            self.assertEqual(total, [2, 2], atol=1e-3, rtol=0)
            self.assertEqual(self.is_master, self.rank == 0)
            self.assertEqual(self._current_test_name(), "test_collective")
            numbers = [None, None]
            dist.all_gather_object(numbers, torch.rand(1).item())
            self.assertEqual(numbers[0], numbers[1])

        def test_wrong_tensor_on_rank_1(self):
            self.assertEqual(torch.tensor([self.rank]), torch.tensor([0]))

        def test_exception_on_rank_0(self):
            if self.rank == 0:
                raise ValueError("planted")

        def test_skip(self):
            self.skipTest("planted reason")

        @decorated
        def test_skip_by_code(self):
            sys.exit(TEST_SKIPS["small_worldsize"].exit_code)

        def test_unknown_code(self):
            sys.exit(3)

        @unittest.expectedFailure
        def test_expected_failure(self):
            self.assertEqual(self.rank, 0)

        @unittest.expectedFailure
        def test_unexpected_success(self): ...

        @decorated
        def test_any_code(self):
            os._exit(3 + self.rank)

        def test_abort_code(self):
            sys.exit(signal.SIGABRT)

        # The outcomes of the tests below differ on purpose.

        def test_exit_0_before_the_end(self):
            sys.exit(0)

        def test_crash_of_rank_1(self):
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_unknown_code_of_rank_1(self):
            if self.rank == 1:
                sys.exit(3)

        def test_skip_of_rank_1(self):
            if self.rank == 1:
                self.skipTest("planted reason")

        def test_cleanup_fails(self):
            self.addCleanup(self.fail, "planted")

    if __name__ == "__main__":
        outcomes = {}
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(TestBoth):
            result = unittest.TestResult()
            test.run(result)
            kinds = {
                "failed": result.failures + result.errors,
                "skipped": result.skipped,
                "expected failure": result.expectedFailures,
                "unexpected success": result.unexpectedSuccesses,
            }
            outcomes[test._testMethodName] = ", ".join(kind for kind, found in kinds.items() if found) or "passed"
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
"""
_SAME = {
    "test_collective": "passed",
    "test_wrong_tensor_on_rank_1": "failed",
    "test_exception_on_rank_0": "failed",
    "test_skip": "skipped",
    "test_skip_by_code": "skipped",
    "test_unknown_code": "failed",
    "test_expected_failure": "expected failure",
    "test_unexpected_success": "unexpected success",
    "test_any_code": "passed",
    "test_abort_code": "passed",
}
# torch passes all of these: it checks the exit code of rank 0 only, and runs no cleanups on ranks.
_NOT_THE_SAME = (
    "test_exit_0_before_the_end",
    "test_crash_of_rank_1",
    "test_unknown_code_of_rank_1",
    "test_skip_of_rank_1",
    "test_cleanup_fails",
)


@pytest.mark.parametrize(("base", "others"), [("torch", "passed"), ("ours", "failed")])
def test_outcomes_equal_torchs_except_hidden_failures(starter: Starter, tmp_path: Path, base: str, others: str) -> None:
    """If this fails, the list of differences, a promise to users who migrate, is wrong for this torch."""
    write_file(tmp_path, "both.py", _CASES)
    outcomes = tmp_path / "outcomes.json"
    child = starter.start(["both.py"], tmp_path, env={"BASE": base, "OUTCOMES": str(outcomes)})
    assert child.wait() == 0, child.log
    assert json.loads(outcomes.read_text()) == {**_SAME, **dict.fromkeys(_NOT_THE_SAME, others)}, child.log
