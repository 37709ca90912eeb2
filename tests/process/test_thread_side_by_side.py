"""One test class on torch's `MultiThreadedTestCase` and on ours: the same outcomes, except where ours is better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import write_file
from tests.support.starter import Starter

_CASES = """
    import json
    import sys
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist
    {base}

    class TestOutcomes(MultiThreadedTestCase):
        @property
        def world_size(self):
            return 3

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def perThreadSetUp(self):
            self.doubled = 2 * self.rank

        def test_pass(self):
            total = torch.full((1,), float(self.doubled))
            dist.all_reduce(total)
            self.assertEqual(total, torch.full((1,), 6.0))

        def test_assertion(self):
            self.assertNotEqual(self.rank, 1)

        def test_error_in_mid_collective(self):
            if self.rank == 0:
                raise ValueError("planted")
            dist.all_reduce(torch.ones(1))

        def test_skip_of_all(self):
            self.skipTest("planted")

        def test_skip_by_code(self):
            sys.exit(74)

        @unittest.skip("planted")
        def test_skip_by_decorator(self): ...

        @unittest.expectedFailure
        def test_expected_failure(self):
            self.assertEqual(self.rank, 0)

        @unittest.expectedFailure
        def test_unexpected_success(self): ...

        def test_unknown_exit_code(self):
            sys.exit(3)

        def test_skip_of_one(self):
            if self.rank == 1:
                self.skipTest("alone")

        def test_failing_sub_test(self):
            with self.subTest("planted"):
                self.assertNotEqual(self.rank, 1)

        def test_failing_cleanup(self):
            self.addCleanup(int, "planted")

    if __name__ == "__main__":
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(TestOutcomes)
        outcomes = {test._testMethodName: "passed" for test in suite}
        result = unittest.TestResult()
        suite.run(result)
        for outcome, entries in (
            ("failed", result.failures + result.errors),
            ("skipped", result.skipped),
            ("expected failure", result.expectedFailures),
            ("unexpected success", [(test, "") for test in result.unexpectedSuccesses]),
        ):
            outcomes.update((test._testMethodName, outcome) for test, _ in entries)
        Path("outcomes.json").write_text(json.dumps(outcomes))
"""
_BASES = {
    "torch": "from torch.testing._internal.common_distributed import MultiThreadedTestCase",
    "ours": "from dist_testing import MultiThreadedTestCase",
}
# The tests whose outcomes differ: torch's, then ours.
_BETTER = {
    "test_unknown_exit_code": ("passed", "failed"),
    "test_skip_of_one": ("skipped", "failed"),
    "test_failing_cleanup": ("passed", "failed"),
}
_ALIKE = {
    "test_pass": "passed",
    "test_assertion": "failed",
    "test_error_in_mid_collective": "failed",
    "test_skip_of_all": "skipped",
    "test_skip_by_code": "skipped",
    "test_skip_by_decorator": "skipped",
    "test_expected_failure": "expected failure",
    "test_unexpected_success": "unexpected success",
    "test_failing_sub_test": "failed",
}


@pytest.mark.parametrize("which", ["torch", "ours"])
def test_outcomes(starter: Starter, tmp_path: Path, which: str) -> None:
    """If this fails for ours, a migrated suite gets other results; for torch, this comparison is outdated."""
    file = write_file(tmp_path, "test_cases.py", _CASES)
    file.write_text(file.read_text().replace("{base}", _BASES[which]))
    child = starter.start(["test_cases.py"], tmp_path)
    assert child.wait() == 0, child.log
    better = {name: outcomes[which == "ours"] for name, outcomes in _BETTER.items()}
    assert {**_ALIKE, **better} == json.loads((tmp_path / "outcomes.json").read_text()), child.log
