"""The same classes on torch's base classes and on ours: changing the import changes neither outcomes nor calls."""

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
    import threading
    import time
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist

    IS_TORCH = os.environ["BASE"] == "torch"
    if IS_TORCH:
        from torch.testing._internal import common_distributed
        public = common_distributed
    else:
        import dist_testing as public
        from dist_testing.compat import common_distributed

    TEST_SKIPS, OnProcesses, OnThreads = public.TEST_SKIPS, public.MultiProcessTestCase, public.MultiThreadedTestCase
    MultiProcessTestCase = common_distributed.MultiProcessTestCase
    MultiThreadedTestCase = common_distributed.MultiThreadedTestCase
    # Seconds.
    common_distributed.TIMEOUT_OVERRIDE["test_hangs"] = 5

    told = {}

    def tell(test, *facts):
        told.setdefault(test, []).append(list(facts))

    def spawn(test):
        if IS_TORCH:
            # As torch's `_spawn_processes`, but forked: a fresh interpreter per rank takes seconds.
            test._start_processes(torch.multiprocessing.get_context("fork").Process)
        else:
            test._spawn_processes()

    # Outcomes.

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

    class Processes(Both, OnProcesses):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            os.environ["OF_THE_MOMENT"] = "set"
            spawn(self)
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

    class Threads(Both, OnThreads):
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

    # Calls of members that classes override.

    class SpawnedThreads(MultiThreadedTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_passes(self):
            dist.barrier()

        def test_fails(self):
            if self.rank == 1:
                raise ValueError("planted")

        def test_skips(self):
            self.skipTest("planted")

    class OwnCheck(SpawnedThreads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            tell(
                fn.__name__,
                sorted(
                    (rank, kind.__name__, str(error).splitlines()[0], bool(trace))
                    for rank, (kind, error, trace) in failed_ranks
                ),
                type(timeout).__name__ in ("int", "float"),
            )

    class AlsoOwnCheck(SpawnedThreads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            super()._check_return_codes(failed_ranks, timeout, fn)

    class Forgives(SpawnedThreads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            kept = [entry for entry in failed_ranks if not isinstance(entry[1][1], ValueError)]
            super()._check_return_codes(kept, timeout, fn)

    class Invents(SpawnedThreads):
        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            error = ValueError("invented")
            failed_ranks.append((0, (ValueError, error, None)))
            super()._check_return_codes(failed_ranks, timeout, fn)

    class OwnJoin(SpawnedThreads):
        @classmethod
        def _join_threads(cls, threads, fn):
            tell(fn.__name__, len(threads), all(callable(thread.join) for thread in threads))
            for thread in threads:
                thread.join()
            tell(fn.__name__, [thread.is_alive() for thread in threads])
            super()._join_threads(threads, fn)

    class OwnSpawn(SpawnedThreads):
        def _spawn_threads(self):
            tell(self._current_test_name, len(self.threads))
            super()._spawn_threads()
            tell(self._current_test_name, len(self.threads), self.rank)

    class ForkedRanks(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            spawn(self)

        def tearDown(self):
            super().tearDown()
            Path(self.file_name).unlink(missing_ok=True)

    class ProcessCheck(ForkedRanks):
        def test_codes(self):
            sys.exit(3 if self.rank == 0 else 0)

        def _check_return_codes(self, fn, elapsed_time):
            tell(fn.__name__, [process.exitcode for process in self.processes], elapsed_time > 0)
            self.skip_return_code_checks = [fn]
            super()._check_return_codes(fn, elapsed_time)

    class OwnStart(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._fork_processes()

        def _fork_processes(self):
            if os.environ["BASE"] == "torch":
                # Of older releases.
                self._start_processes(torch.multiprocessing.get_context("fork").Process)
            else:
                super()._fork_processes()

        def _start_processes(self, proc):
            os.environ["SET_FOR_RANKS"] = "1"
            tell(self._testMethodName, len(self.processes))
            super()._start_processes(proc)
            del os.environ["SET_FOR_RANKS"]

        def test_variable(self):
            assert os.environ["SET_FOR_RANKS"] == "1"

    class OwnJoinOfProcesses(ForkedRanks):
        def _join_processes(self, fn):
            started = time.time()
            while not all(process.exitcode is not None for process in self.processes):
                time.sleep(0.01)
            tell(fn.__name__, [process.exitcode for process in self.processes])
            self._check_return_codes(fn, time.time() - started)

        def test_passes(self): ...

        def test_fails(self):
            raise ValueError("planted")

        def test_fails_on_one(self):
            if self.rank == 1:
                raise ValueError("planted")

    class OwnJoinAndCheck(OwnJoinOfProcesses):
        def _check_return_codes(self, fn, elapsed_time):
            assert not any(process.exitcode for process in self.processes)

    class OwnJoinOfAnyCode(OwnJoinOfProcesses):
        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [getattr(self, self._testMethodName).__wrapped__]

        def test_any_code(self):
            if self.rank == 0:
                os.kill(os.getpid(), 9)
            # Longer than the other ranks of a failed test may go on.
            time.sleep(3)

    class OwnLimit(ForkedRanks):
        def _get_timedout_process_traceback(self):
            tell(self._testMethodName, len(self.processes))
            raise KeyError("planted")

        def test_hangs(self):
            threading.Event().wait()

    class ProcessCheckFails(ForkedRanks):
        def test_raises(self):
            raise ValueError("planted")

        def _check_return_codes(self, fn, elapsed_time):
            super()._check_return_codes(fn, elapsed_time)

    if __name__ == "__main__":
        outcomes = {}
        for cls in (
            Processes, Threads, OwnCheck, AlsoOwnCheck, Forgives, Invents, OwnJoin, OwnSpawn, OwnStart,
            OwnJoinOfProcesses, OwnJoinAndCheck, OwnJoinOfAnyCode, OwnLimit, ProcessCheck, ProcessCheckFails,
        ):
            told.clear()
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
                result = unittest.TestResult()
                test.run(result)
                kinds = {
                    "failed": result.failures + result.errors,
                    "skipped": result.skipped,
                    "expected failure": result.expectedFailures,
                    "unexpected success": result.unexpectedSuccesses,
                }
                name = test._testMethodName
                outcome = ", ".join(kind for kind, found in kinds.items() if found) or "passed"
                outcomes[f"{cls.__name__}.{name}"] = [outcome, told.get(name, [])]
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
"""
_BOTH = {
    "test_collective": "passed",
    "test_skip": "skipped",
    "test_skip_by_code": "skipped",
    "test_expected_failure": "expected failure",
    "test_unexpected_success": "unexpected success",
}
_OUTCOMES = {
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


# What the overrides were called with.
_CALLS: dict[str, list[object]] = {
    "OwnCheck.test_passes": ["passed", [[[], True]]],
    "OwnCheck.test_fails": ["passed", [[[[1, "ValueError", "planted", True]], True]]],
    "AlsoOwnCheck.test_passes": ["passed", []],
    "AlsoOwnCheck.test_fails": ["failed", []],
    "AlsoOwnCheck.test_skips": ["skipped", []],
    "Forgives.test_passes": ["passed", []],
    "Forgives.test_fails": ["passed", []],
    "Forgives.test_skips": ["skipped", []],
    "Invents.test_passes": ["failed", []],
    "Invents.test_fails": ["failed", []],
    "Invents.test_skips": ["failed", []],
    "OwnJoin.test_passes": ["passed", [[2, True], [[False, False]]]],
    "OwnJoin.test_fails": ["failed", [[2, True], [[False, False]]]],
    "OwnJoin.test_skips": ["skipped", [[2, True], [[False, False]]]],
    "OwnSpawn.test_passes": ["passed", [[0], [2, -1]]],
    "OwnSpawn.test_fails": ["failed", [[0], [2, -1]]],
    "OwnSpawn.test_skips": ["skipped", [[0], [2, -1]]],
    "OwnStart.test_variable": ["passed", [[0]]],
    "OwnJoinOfProcesses.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinOfProcesses.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinOfProcesses.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinAndCheck.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinAndCheck.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinAndCheck.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinOfAnyCode.test_passes": ["passed", [[[0, 0]]]],
    "OwnJoinOfAnyCode.test_fails": ["failed", [[[10, 10]]]],
    "OwnJoinOfAnyCode.test_fails_on_one": ["failed", [[[0, 10]]]],
    "OwnJoinOfAnyCode.test_any_code": ["passed", [[[-9, 0]]]],
    "OwnLimit.test_hangs": ["failed", [[2]]],
    "ProcessCheck.test_codes": ["passed", [[[3, 0], True]]],
    "ProcessCheckFails.test_raises": ["failed", []],
}


@pytest.mark.parametrize("base", ["torch", "ours"])
def test_outcomes_and_calls_equal_torchs_except_hidden_failures(starter: Starter, tmp_path: Path, base: str) -> None:
    """If this fails, the list of differences is wrong for this torch, or a class that judges its ranks gets others."""
    write_file(tmp_path, "both.py", _CASES)
    outcomes = tmp_path / "outcomes.json"
    child = starter.start(["both.py"], tmp_path, env={"BASE": base, "OUTCOMES": str(outcomes)})
    assert child.wait() == 0, child.log
    found = json.loads(outcomes.read_text())
    # Ranks that skip are in the list, each with its SkipTest.
    outcome, ((entries, has_limit),) = found.pop("OwnCheck.test_skips")
    assert (outcome, has_limit) == ("passed", True)
    assert [entry[:3] for entry in entries] == [[rank, "SkipTest", "planted"] for rank in range(2)]
    hidden = _HIDDEN if base == "torch" else dict.fromkeys(_HIDDEN, "failed")
    expected = {name: [outcome, []] for name, outcome in (_OUTCOMES | hidden).items()}
    assert found == expected | _CALLS, child.log
