"""The class whose tests share ranks and a process group, and the class for any device, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import sys
    import threading
    import unittest
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import dist_testing

    NOTES = Path.cwd()

    class TestShared(dist_testing.MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def setUp(self):
            super().setUp()
            self.assertEqual(self.rank, self.MAIN_PROCESS_RANK)

        def setUpRank(self):
            self.value = self.rank

        def _note(self):
            total = torch.ones(1)
            dist.all_reduce(total, group=self.pg)
            self.assertEqual(total, dist.get_world_size())
            self.assertEqual(self.value, dist.get_rank())
            self.assertEqual(self.world_size, dist.get_world_size())
            (NOTES / f"{self._testMethodName}-{self.rank}-{os.getpid()}").touch()

        def test_a_shares(self):
            self._note()
            dist.new_group([0, 1])

        def test_b_shares(self):
            self._note()

        def test_c_fails(self):
            self._note()
            self.assertNotEqual(self.rank, 1, "planted")
            dist.barrier()

        def test_d_goes_on(self):
            self._note()

        def test_e_skips(self):
            # A skip ends the ranks, so that it does not matter what it leaves.
            os.environ["LEFT_BEHIND"] = "yes"
            self.skipTest("planted reason")

        def test_f_skips(self):
            sys.exit(dist_testing.TEST_SKIPS["small_worldsize"].exit_code)

        def test_g_fails(self):
            if self.rank == 1:
                os._exit(3)
            threading.Event().wait()

        def test_h_goes_on(self):
            self._note()

        def test_i_fails(self):
            os.environ["LEFT_BEHIND"] = "yes"

        def test_j_goes_on(self):
            self.assertNotIn("LEFT_BEHIND", os.environ)
            self._note()

        def test_k_fails(self):
            dist.destroy_process_group()

        def test_l_goes_on(self):
            self._note()

        def test_m_fails(self):
            if self.rank == 0:
                dist.barrier()
"""


def test_tests_share_ranks_until_one_fails(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each test starts ranks, or one failure costs the rest of the class."""
    ended = run_cases(starter, tmp_path, _CASES)
    ended.check_by_name(
        11,
        "2 skipped",
        "rank 1 raised AssertionError: 1 == 1 : planted",
        "planted reason",
        "Skipped due to small world size.",
        "rank 1 exited with code 3",
        "environment variable(s) LEFT_BEHIND",
        "process groups, from 1 to 0",
        # The limit that the class has by default is not the test's own.
        "It is proven that no rank could ever go on",
    )
    pids: dict[str, set[str]] = {}
    for path in tmp_path.glob("test_?_*-*-*"):
        name, _, pid = path.name.split("-")
        pids.setdefault(name[:6], set()).add(pid)
    assert pids["test_a"] == pids["test_b"] == pids["test_c"]
    assert not pids["test_c"] & pids["test_d"]
    assert not pids["test_d"] & pids["test_h"]
    assert not pids["test_h"] & pids["test_j"]


def test_group_follows_the_class(starter: Starter, tmp_path: Path) -> None:
    """If this fails, one of the forms in which torch's suites give sizes, devices and backends is ignored."""
    source = """
        import datetime
        import sys
        import torch
        import torch.distributed as dist
        import dist_testing
        from dist_testing import MultiProcContinousTest, MultiProcContinuousTest

        class TestUnset(MultiProcContinuousTest):
            timeout = datetime.timedelta(seconds=77)

            @classmethod
            def device_type(cls):
                return "cpu"

            def test_size(self):
                self.assertEqual((dist.get_world_size(), self.world_size), (4, 4))

        class TestText(MultiProcContinousTest):
            world_size = "2"
            device_type = "cpu"
            backend_str = "gloo"

            def test_size(self):
                self.assertEqual((dist.get_world_size(), dist.get_backend()), (2, "gloo"))

        class TestProperties(MultiProcContinuousTest):
            @property
            def world_size(self):
                return 3

            @property
            def device_type(self):
                return "cpu"

            def test_size(self):
                self.assertEqual(dist.get_world_size(), 3)

        class Two(MultiProcContinuousTest):
            world_size = 2

        class TestOwnGroup(Two):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                store = dist.FileStore(rdvz_file, world_size)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
                cls.own = "made"

            def test_own(self):
                self.assertEqual(self.own, "made")
                dist.barrier()

        class TestSkipInGroup(Two):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                sys.exit(dist_testing.TEST_SKIPS["multi-gpu-2"].exit_code)

            def test_one(self):
                raise ValueError

            def test_other(self):
                raise ValueError

        class TestErrorInGroup(Two):
            @classmethod
            def _init_pg(cls, rank, world_size, rdvz_file):
                raise ValueError("planted in _init_pg")

            def test_fails(self): ...

        class TestAround(Two):
            @classmethod
            def _run_test_given_id(cls, test_id):
                cls.seen = test_id
                super()._run_test_given_id(test_id)

            def test_around(self):
                self.assertEqual(self.seen, self.id())

        class TestForgets(Two):
            @classmethod
            def _run_test_given_id(cls, test_id): ...

            def test_forgotten_fails(self): ...

        class TestOwnLoop(Two):
            @classmethod
            def _worker_loop(cls, rank, world_size, rdvz_file, task_queue, completion_queue): ...

            def test_own_loop_fails(self): ...

        class TestPoisoned(MultiProcContinuousTest):
            poison_pill = True

            def test_never(self):
                raise ValueError

        class TestNoRanks(MultiProcContinuousTest):
            world_size = 0

            def test_no_ranks_fails(self): ...

        class TestMisspelt(Two):
            @classmethod
            def backend_str(cls):
                return "cpu:glo"

            def test_misspelt_fails(self): ...

        if not dist.is_nccl_available():

            class TestNoBackend(Two):
                @classmethod
                def backend_str(cls):
                    return "nccl"

                def test_never(self):
                    raise ValueError
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check_by_name(
        10,
        "TestForgets._run_test_given_id has returned, and test_forgotten_fails has not run",
        "test_own_loop_fails: the class has a method _worker_loop, which the library would never call",
        "Need at least 2 CUDA devices",
        "raised ValueError: planted in _init_pg in init",
        "the class's poison_pill is set",
        "world_size = 0; expected a number of ranks from 1 to 1024",
        "backend_str() returns 'cpu:glo', and torch knows no backend 'glo'.",
        "Did you mean 'gloo'?",
    )
    # It is told before ranks start.
    assert "world of" not in ended.failures()["test_misspelt_fails"]


def test_process_that_is_already_a_rank_runs_the_tests_in_place(starter: Starter, tmp_path: Path) -> None:
    """If this fails, older files, which start their ranks themselves or with torchrun, cannot run."""
    file = write_file(tmp_path, "test_cases.py", _CASES)
    file.write_text(
        f"{file.read_text()}\n\n"
        'if __name__ == "__main__":\n'
        '    file = os.environ.get("RENDEZVOUS")\n'
        "    TestShared.setUp = lambda self: super(TestShared, self).setUp()\n"
        '    TestShared.run_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), file)\n'
    )

    def run(*names: str) -> list[tuple[int, str]]:
        env = {"WORLD_SIZE": "2", "RENDEZVOUS": str(tmp_path / f"rendezvous-{len(names)}")}
        children = [
            starter.start(["test_cases.py", "-v", *names], tmp_path, env={**env, "RANK": str(rank)})
            for rank in range(2)
        ]
        return [(child.wait(), child.log) for child in children]

    for code, log in run("TestShared.test_a_shares", "TestShared.test_b_shares", "TestShared.test_e_skips"):
        assert code == 0, log
        assert "OK (skipped=1)" in log
    first, second = run(
        "TestShared.test_a_shares", "TestShared.test_i_fails", "TestShared.test_j_goes_on", "TestMissing"
    )
    assert first[0] == second[0] == 1, first
    assert "TestMissing" in first[1]
    for code, log in run("-k", "matches_no_test"):
        assert code == 5, log
    ended = run_cases(starter, tmp_path, _CASES + "\n    TestShared.run_rank(2, 2)\n")
    assert ended.code == pytest.ExitCode.INTERRUPTED
    assert "TestShared.run_rank: rank = 2 in a world of 2" in ended.log


def test_class_for_any_device_creates_its_group(starter: Starter, tmp_path: Path) -> None:
    """If this fails, suites for several kinds of device get no backend, devices or group."""
    source = """
        import os
        import torch
        import torch.distributed as dist
        import dist_testing

        BEFORE = os.environ.get("WORLD_SIZE")

        class TestDevice(dist_testing.DistributedTestBase):
            world_size = 2

            def tearDown(self):
                self.assertEqual(os.environ["WORLD_SIZE"], "2")
                super().tearDown()

            def test_group(self):
                group = self.create_pg("cpu")
                total = torch.ones(2)
                dist.all_reduce(total, group=group)
                self.assertEqual(total, [2, 2])
                self.assertEqual(dist.get_backend(group), "gloo")

            def test_smaller_group(self):
                if self.rank == 0:
                    self.assertEqual(self.create_pg("cpu", world_size=1).size(), 1)

            def test_devices(self):
                self.assertEqual(self.rank_to_device("cpu"), {0: [0], 1: [0]})
                kinds = ["cpu", "cuda:1", "hpu", "xpu", torch.device("cuda")]
                self.assertEqual([self.backend(kind) for kind in kinds], ["gloo", "nccl", "hccl", "xccl", "nccl"])

            def test_no_device_fails(self):
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
                self.rank_to_device("cuda")

        class TestEnvironment(dist_testing.MultiProcessTestCase):
            world_size = 1

            def setUp(self):
                super().setUp()
                self.assertEqual(os.environ.get("WORLD_SIZE"), BEFORE)

            def test_is_as_before(self): ...
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(passed="test_group test_smaller_group test_devices test_is_as_before", failed="test_no_device_fails")
    assert "test_no_device_fails: there is no cuda device for the ranks" in ended.log
