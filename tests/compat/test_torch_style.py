"""How torch's own test files use the classes, helpers and hooks: one file that uses all of them, run once."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.compat.files import outcomes, run_file
from tests.support.children import run_pytest, write_file
from tests.support.starter import Starter

_FILE = """
    import multiprocessing
    import os
    import pickle
    import sys
    import time
    import unittest

    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.testing._internal.common_device_type import instantiate_device_type_tests
    from torch.testing._internal.common_distributed import (
        TEST_SKIPS, TIMEOUT_OVERRIDE, C10dTorchCommsTestBase, DistributedTestBase, DynamoDistributedMultiProcTestCase,
        DynamoDistributedSingleProcTestCase, MultiProcContinousTest, MultiProcContinuousTest, MultiProcessTestCase,
        MultiThreadedTestCase, _dynamo_dist_per_rank_init, run_subtests, skip_if_lt_x_gpu, with_dist_debug_levels,
    )
    from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
    from torch.testing._internal.distributed._tensor.common_dtensor import (
        DTensorOpTestBase, DTensorTestBase, create_local_tensor_test_class, with_comms,
    )


    class Spawning(MultiProcessTestCase):
        world_size = "2"

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def init(self, name=""):
            store = dist.FileStore(self.file_name + name, 2)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)


    class Helpers(Spawning):
        def test_subtests(self):
            self.init()
            run_subtests(self, {"a": [1, 2], "b": [3]}, self.sum, 5)

        def sum(self, five, *, a, b):
            value = torch.full((1,), float(a * b * five))
            dist.all_reduce(value)
            self.assertEqual(value.item(), 2 * a * b * five)

        def test_methods_travel(self):
            # RPC and multiprocessing send methods like this.
            travelled = pickle.loads(pickle.dumps(self.add_rank))
            self.assertEqual(travelled(40), 40 + self.rank)

        def test_own_processes_are_spawned(self):
            self.assertEqual(multiprocessing.get_start_method(), "spawn")

        def add_rank(self, value):
            with self.subTest(value=value):
                return value + self.rank

        @with_dist_debug_levels(levels=["OFF", "DETAIL"])
        def test_debug_levels(self):
            self.init(os.environ["TORCH_DISTRIBUTED_DEBUG"])
            dist.barrier()
            dist.destroy_process_group()

        def test_dynamo_init(self):
            with unittest.mock.patch("torch.accelerator.set_device_index"):
                for _ in range(2):
                    with _dynamo_dist_per_rank_init(self.rank, 2, backend="gloo"):
                        dist.barrier()
            self.assertNotIn("MASTER_PORT", os.environ)
            with _dynamo_dist_per_rank_init(self.rank, 2, fake_pg=True):
                self.assertEqual(dist.get_backend(), "fake")


    class Exits(Spawning):
        def __init__(self, method_name="runTest", methodName="runTest"):
            super().__init__(method_name, methodName)

        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [self.test_any_code.__wrapped__]
            self.special_return_code_checks = {self.test_special_code.__wrapped__: 7}

        @skip_if_lt_x_gpu(0)
        def test_any_code(self):
            os._exit(5)

        @skip_if_lt_x_gpu(0)
        def test_special_code(self):
            os._exit(7)

        def test_unknown_code(self):
            sys.exit(91)

        def test_many_gpus_code(self):
            sys.exit(TEST_SKIPS["multi-gpu-12"].exit_code)


    class OwnRun(Spawning):
        @property
        def destroy_pg_upon_exit(self):
            return False

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs):
            self = cls(test_name)
            self.rank = rank
            self.file_name = file_name
            if test_name == "test_skipped_before":
                sys.exit(TEST_SKIPS["backend_unavailable"].exit_code)
            dist.init_process_group("gloo", init_method=f"file://{file_name}", rank=rank, world_size=2)
            self.run_test(test_name, pipe)
            dist.barrier()
            dist.destroy_process_group()

        def test_own_run(self):
            self.assertEqual(dist.get_world_size(), 2)

        def test_skipped_before(self):
            raise AssertionError


    class Continuous(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        @parametrize("n", [1, 2])
        def test_sum(self, n):
            value = torch.full((1,), n)
            dist.all_reduce(value, group=self.pg)
            self.assertEqual(value.item(), 2 * n)

        def test_a_failure(self):
            self.assertEqual(self.rank, 0)

        def test_b_leaves_a_variable(self):
            os.environ["LEFT_BY_B"] = "1"

        def test_c_finds_it(self):
            self.assertIn("LEFT_BY_B", os.environ)

        def test_skip(self):
            self.skipTest("because")

        @skip_if_lt_x_gpu(99)
        def test_gpus(self):
            raise AssertionError


    instantiate_parametrized_tests(Continuous)
    assert MultiProcContinousTest is MultiProcContinuousTest


    class OnDevice(DistributedTestBase):
        world_size = 2

        def test_on_device(self, device):
            self.create_pg(device)
            value = torch.ones(1, device=device)
            dist.all_reduce(value)
            self.assertEqual(value.item(), 2)


    instantiate_device_type_tests(OnDevice, globals(), only_for=["cpu"])


    class Tensors(DTensorTestBase):
        @with_comms
        def test_dtensor(self):
            mesh = self.build_device_mesh()
            sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
            self.assertEqual(sharded.full_tensor(), torch.arange(8.0))


    class TensorsOnThreads(DTensorOpTestBase):
        def test_dtensor_on_threads(self):
            sharded = distribute_tensor(torch.arange(8.0), self.build_device_mesh(), [Shard(0)])
            self.assertEqual(sharded.sum().full_tensor().item(), 28.0)


    class InOneProcess(DTensorTestBase):
        @with_comms
        def test_dtensor_in_one_process(self):
            sharded = distribute_tensor(torch.arange(8.0), self.build_device_mesh(), [Shard(0)])
            self.assertEqual(sharded.full_tensor(), torch.arange(8.0))

        @skip_if_lt_x_gpu(99)
        def test_handles_its_skip(self):
            raise AssertionError


    InOneProcessWithLocalTensor = create_local_tensor_test_class(InOneProcess)
    del InOneProcess


    class Compiled(DynamoDistributedMultiProcTestCase):
        @skip_if_lt_x_gpu(99)
        def test_compiled(self):
            raise AssertionError


    class OnOneRank(DynamoDistributedSingleProcTestCase):
        def test_on_one_rank(self):
            self.assertEqual(dist.get_world_size(), 1)


    class Comms(C10dTorchCommsTestBase):
        def test_comms(self):
            raise AssertionError


    class Limits(Spawning):
        def test_hang(self):
            if self.rank == 1:
                time.sleep(600)

        def test_skips(self):
            self.skipTest("because")

        @skip_if_lt_x_gpu(99)
        def test_skips_before_ranks(self):
            raise AssertionError


    class OwnLimit(Spawning):
        def test_own(self):
            pass

        def test_default(self):
            pass


    class Native(Spawning):
        def test_native_error(self):
            torch.ones(2) @ torch.ones(3)


    TIMEOUT_OVERRIDE["test_own"] = 60


    class TakesAny(Spawning):
        def _check_return_codes(self, *args):
            fn, elapsed = args
            print("took", fn.__name__, elapsed > 0, flush=True)
            super()._check_return_codes(*args)

        def test_takes_any(self):
            pass


    class Words(Spawning):
        def _join_processes(self, fn):
            with self.assertRaisesRegex(RuntimeError, "1 exited with error code 10 and exception:\\nValueError"):
                super()._join_processes(fn)

        def test_words(self):
            if self.rank == 1:
                raise ValueError("planted")


    class WordsOfThreads(MultiThreadedTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        @classmethod
        def _check_return_codes(cls, failed_ranks, timeout, fn):
            try:
                super()._check_return_codes(failed_ranks, timeout, fn)
            except RuntimeError as error:
                assert str(error).startswith("Thread 1 exited with exception:\\nValueError: planted"), error

        def test_words_of_threads(self):
            if self.rank == 1:
                raise ValueError("planted")


    class NotCalled(Spawning):
        def _event_listener(parent_pipe, signal_pipe, rank):
            pass

        def test_not_called(self):
            pass


    if __name__ == "__main__":
        run_tests()
"""
_OUTCOMES = {
    "PASSED": "test_subtests test_methods_travel test_own_processes_are_spawned test_debug_levels test_dynamo_init "
    "test_any_code test_special_code test_own_run test_sum_n_1 test_sum_n_2 test_b_leaves_a_variable test_c_finds_it "
    "test_on_device_cpu test_dtensor test_dtensor_on_threads test_dtensor_in_one_process test_takes_any test_words "
    "test_words_of_threads",
    "FAILED": "test_unknown_code test_a_failure",
    "ERROR": "test_not_called",
    "SKIPPED": "test_many_gpus_code test_skipped_before test_skip test_gpus test_handles_its_skip test_compiled "
    "test_comms",
}
_EXPECTED = {name: outcome for outcome, names in _OUTCOMES.items() for name in names.split()}


def test_torchs_usages_of_the_classes_work(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a usage from torch's test tree breaks, which keeps a team from migrating."""
    classes = [line.split()[1].partition("(")[0] for line in _FILE.splitlines() if line.startswith("    class ")]
    # Helpers of torch make classes with these names from the classes in the file.
    made = {"OnDevice": "OnDeviceCPU", "InOneProcess": "InOneProcessWithLocalTensor"}
    names = [made.get(name, name) for name in classes if name not in ("Spawning", "Limits", "OwnLimit", "Native")]
    ended = run_file(starter, tmp_path, _FILE, "-v", *names)
    expected = _EXPECTED
    if torch.accelerator.is_available():
        expected = {**expected, "test_on_one_rank": "PASSED"}
    else:
        # The class skips as a whole.
        assert "OnOneRank) ... skipped 'accelerator is not available.'" in ended.log
    assert outcomes(ended.log) == expected, ended.log
    assert "rank 1 raised AssertionError" in ended.log
    assert "exited with code 91" in ended.log
    assert "took test_takes_any True" in ended.log
    assert "test_not_called: the class has a method _event_listener, which the library would never call" in ended.log
    # A build of torch for CUDA has an accelerator even without a GPU; torch's class uses it, too.
    backend = "gloo" if torch.accelerator.current_accelerator() is None else "nccl"
    for reason in ("Need at least 12 CUDA devices", "because", f"torchcomms {backend} backend is not available"):
        assert f"skipped '{reason}'" in ended.log


def test_variables_of_torch(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a hang takes five minutes in a CI job that asked for ten seconds, or a skip counts as a pass."""
    write_file(tmp_path, "test_file.py", _FILE)
    # Long enough for ranks on a busy machine to reach the point where one of them hangs.
    env = {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "10", "SANDCASTLE": "1"}
    arguments = ["-m", "dist_testing.compat", "test_file.py", "-v", "Limits"]
    child = starter.start(arguments, tmp_path, env=env)
    assert child.wait() == 1
    assert "Process 1 terminated or timed out after 10." in child.log
    assert "or the variable DISTRIBUTED_TESTS_DEFAULT_TIMEOUT." in child.log
    expected = {"test_hang": "FAILED", "test_skips": "SKIPPED", "test_skips_before_ranks": "SKIPPED"}
    assert outcomes(child.log) == expected, child.log
    assert "rank 1 was still in call at the deadline" in child.log


def test_an_invalid_limit_is_reported_where_it_is_used(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a wrong variable gives a traceback, or breaks tests that have their own limit."""
    write_file(tmp_path, "test_file.py", _FILE)
    options = ("-p", "dist_testing.compat.pytest_install", "-rA", "test_file.py::OwnLimit")
    ended = run_pytest(starter, tmp_path, *options, env={"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "abc"})
    ended.check(passed="test_own", failed="test_default")
    assert "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT = 'abc'; expected a number of seconds" in ended.log
    assert "Traceback" not in ended.log


def test_processes_of_torchs_spawn_have_these_classes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `torch.multiprocessing.spawn(Class.run_rank, ...)` gets torch's class, without `run_rank`."""
    source = """
        import torch
        import torch.distributed as dist
        from torch.testing._internal.common_distributed import MultiProcContinuousTest


        class TestSpawned(MultiProcContinuousTest):
            @classmethod
            def backend_str(cls):
                return "gloo"

            def test_sum(self):
                value = torch.ones(1)
                dist.all_reduce(value)
                print(f"the sum is {value.item()} with {MultiProcContinuousTest.__module__}", flush=True)


        if __name__ == "__main__":
            torch.multiprocessing.spawn(TestSpawned.run_rank, nprocs=2, args=(2, "rendezvous"))
    """
    write_file(tmp_path, "test_spawned.py", source)
    child = starter.start(["-m", "dist_testing.compat", "test_spawned.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert child.log.count("the sum is 2.0 with dist_testing.compat.classes") == 2, child.log


def test_native_errors_of_ranks_have_their_native_stack(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an error of torch's native code does not say where it came from; with torch's classes it does."""
    write_file(tmp_path, "test_file.py", _FILE)
    # Fresh: the starter has imported torch, and torch reads the variable only once.
    child = starter.start(["-m", "dist_testing.compat", "test_file.py", "Native"], tmp_path, fresh=True)
    assert child.wait() == 1
    assert "C++ CapturedTraceback:" in child.log, child.log
    assert "at::native::dot(" in child.log, child.log
