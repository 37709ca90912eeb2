"""The same classes, run on torch's base classes and on ours: changing the import must not change outcomes."""

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
        from torch.testing._internal.common_distributed import TEST_SKIPS, MultiProcessTestCase, MultiThreadedTestCase
    else:
        from dist_testing import TEST_SKIPS, MultiProcessTestCase, MultiThreadedTestCase

    def decorated(function):
        @functools.wraps(function)
        def wrapper(self):
            return function(self)

        return wrapper

    class Both:
        def test_skip(self):
            self.skipTest("planted reason")

        @decorated
        def test_skip_by_code(self):
            sys.exit(TEST_SKIPS["small_worldsize"].exit_code)

        @unittest.expectedFailure
        def test_expected_failure(self):
            self.assertEqual(self.rank, 0)

        @unittest.expectedFailure
        def test_unexpected_success(self): ...

        def test_unknown_code(self):
            sys.exit(3)

        def test_skip_of_rank_1(self):
            if self.rank == 1:
                self.skipTest("planted reason")

        def test_cleanup_fails(self):
            self.addCleanup(self.fail, "planted")

    class Processes(Both, MultiProcessTestCase):
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

        @decorated
        def test_any_code(self):
            os._exit(3 + self.rank)

        def test_abort_code(self):
            sys.exit(signal.SIGABRT)

        def test_exit_0_before_the_end(self):
            sys.exit(0)

        def test_crash_of_rank_1(self):
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_unknown_code_of_rank_1(self):
            if self.rank == 1:
                sys.exit(3)

    class Threads(Both, MultiThreadedTestCase):
        @property
        def world_size(self):
            return 3

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def perThreadSetUp(self):
            self.doubled = 2 * self.rank

        def test_collective(self):
            total = torch.full((1,), float(self.doubled))
            dist.all_reduce(total)
            self.assertEqual(total, torch.full((1,), 6.0))

        def test_assertion(self):
            self.assertNotEqual(self.rank, 1)

        def test_error_in_mid_collective(self):
            if self.rank == 0:
                raise ValueError("planted")
            dist.all_reduce(torch.ones(1))

        @unittest.skip("planted")
        def test_skip_by_decorator(self): ...

        def test_failing_sub_test(self):
            with self.subTest("planted"):
                self.assertNotEqual(self.rank, 1)

    if __name__ == "__main__":
        outcomes = {}
        for cls in (Processes, Threads):
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
                result = unittest.TestResult()
                test.run(result)
                kinds = {
                    "failed": result.failures + result.errors,
                    "skipped": result.skipped,
                    "expected failure": result.expectedFailures,
                    "unexpected success": result.unexpectedSuccesses,
                }
                name = f"{cls.__name__}.{test._testMethodName}"
                outcomes[name] = ", ".join(kind for kind, found in kinds.items() if found) or "passed"
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
"""
_BOTH = {
    "test_collective": "passed",
    "test_skip": "skipped",
    "test_skip_by_code": "skipped",
    "test_expected_failure": "expected failure",
    "test_unexpected_success": "unexpected success",
}
_ALIKE = {
    **{f"{cls}.{name}": outcome for cls in ("Processes", "Threads") for name, outcome in _BOTH.items()},
    "Processes.test_wrong_tensor_on_rank_1": "failed",
    "Processes.test_exception_on_rank_0": "failed",
    "Processes.test_unknown_code": "failed",
    "Processes.test_any_code": "passed",
    "Processes.test_abort_code": "passed",
    "Threads.test_assertion": "failed",
    "Threads.test_error_in_mid_collective": "failed",
    "Threads.test_skip_by_decorator": "skipped",
    "Threads.test_failing_sub_test": "failed",
}
# What torch makes of these, which all fail with ours. It checks the exit code of rank 0 only, and runs no cleanups on
# ranks.
_HIDDEN = {
    "Processes.test_exit_0_before_the_end": "passed",
    "Processes.test_crash_of_rank_1": "passed",
    "Processes.test_unknown_code_of_rank_1": "passed",
    "Processes.test_skip_of_rank_1": "passed",
    "Processes.test_cleanup_fails": "passed",
    "Threads.test_unknown_code": "passed",
    "Threads.test_skip_of_rank_1": "skipped",
    "Threads.test_cleanup_fails": "passed",
}


@pytest.mark.parametrize("base", ["torch", "ours"])
def test_outcomes_equal_torchs_except_hidden_failures(starter: Starter, tmp_path: Path, base: str) -> None:
    """If this fails, the list of differences, a promise to users who migrate, is wrong for this torch."""
    write_file(tmp_path, "both.py", _CASES)
    outcomes = tmp_path / "outcomes.json"
    child = starter.start(["both.py"], tmp_path, env={"BASE": base, "OUTCOMES": str(outcomes)})
    assert child.wait() == 0, child.log
    hidden = _HIDDEN if base == "torch" else dict.fromkeys(_HIDDEN, "failed")
    assert json.loads(outcomes.read_text()) == _ALIKE | hidden, child.log
