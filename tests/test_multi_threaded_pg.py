"""Worlds whose ranks are threads: the same scenarios through every front end, and ranks that fail.

The decorator and the base class run threads of this process; the marker runs them in a separate process, as the target
says.
"""

from __future__ import annotations

import sys
import threading
import unittest
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from dist_testing import TEST_SKIPS
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms
from dist_testing.threaded.thread_case import MultiThreadedTestCase
from tests.multi_threaded_pg_bodies import BODIES

WORLD_SIZE = 4

Body = Callable[[], None]


class FaultError(Exception):
    """A planted error."""


def fail_on(ranks: list[int]) -> None:
    """Let `ranks` fail after a good collective, while the others are in one that can never complete."""
    gathered = [torch.empty(3, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.full((3, 3), float(dist.get_rank())))
    assert [tensor[2, 2].item() for tensor in gathered] == list(range(dist.get_world_size()))
    if dist.get_rank() in ranks:
        raise FaultError(f"planted on rank {dist.get_rank()}")
    dist.all_reduce(torch.ones(3, 3))


# The ranks that fail; the others are in the middle of a collective.
FAILING = ([0], [1], [1, 2, 3])


@pytest.mark.distributed(backends=["threaded"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_through_the_marker(body: Body) -> None:
    """If this fails, a test that passes on processes cannot be moved to threads."""
    body()


class TestThroughTheDecorator:
    """`spawn_threads_and_init_comms`, on methods and on functions inside tests."""

    @pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
    def test_body(self, body: Body) -> None:
        """If this fails, a decorated function does not see the same world as other tests."""
        spawn_threads_and_init_comms(world_size=WORLD_SIZE)(body)()

    @spawn_threads_and_init_comms
    def test_default_world_has_four_ranks(self) -> None:
        """If this fails, the bare decorator means something else than in torch."""
        assert dist.get_world_size() == 4

    @pytest.mark.parametrize("ranks", FAILING, ids=str)
    def test_failure_in_mid_collective_is_a_runtime_error_and_frees_the_others(self, ranks: list[int]) -> None:
        """If this fails, `assertRaises(RuntimeError)` of existing suites breaks, or a rank waits for ever."""
        with pytest.raises(RuntimeError) as caught:
            spawn_threads_and_init_comms(world_size=WORLD_SIZE)(partial(fail_on, ranks))()
        for rank in ranks:
            assert f"planted on rank {rank}" in str(caught.value)
        victims = [str(rank) for rank in range(WORLD_SIZE) if rank not in ranks]
        each = ": each" if len(victims) > 1 else ""
        assert f"{', '.join(victims)}{each} lost a peer in all_reduce" in str(caught.value)

    def test_skip_of_all_is_a_skip_with_its_reason(self) -> None:
        """If this fails, the list of skipped tests lacks the reason that the test gave."""

        @spawn_threads_and_init_comms(world_size=WORLD_SIZE)
        def skip() -> None:
            raise unittest.SkipTest("planted reason")

        with pytest.raises(unittest.SkipTest, match="planted reason"):
            skip()

    def test_skip_code_is_a_skip(self) -> None:
        """If this fails, tests that exit with a code of the skip table are failures."""
        with pytest.raises(unittest.SkipTest, match="CUDA is not available"):
            spawn_threads_and_init_comms(world_size=2)(partial(sys.exit, TEST_SKIPS["no_cuda"].exit_code))()

    def test_arguments_reach_every_rank(self) -> None:
        """If this fails, a decorated helper does not get the arguments of its call."""
        seen = []

        @spawn_threads_and_init_comms(world_size=3)
        def note(*args: int, **kwargs: int) -> None:
            seen.append((dist.get_rank(), args, kwargs))

        note(1, two=2)
        assert sorted(seen) == [(rank, (1,), {"two": 2}) for rank in range(3)]

    def test_world_is_gone_afterwards(self) -> None:
        """If this fails, the tests after this one run in its world."""
        spawn_threads_and_init_comms(world_size=2)(dist.barrier)()
        assert not dist.is_initialized()
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("rank-")] == []


class TestThroughTheBaseClass(MultiThreadedTestCase):
    """`MultiThreadedTestCase`: each method runs on all threads, with an instance for each."""

    shared: ClassVar[list[int]] = []

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return WORLD_SIZE

    def setUp(self) -> None:
        """Start the threads, in the runner."""
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self) -> None:
        """Set a value on every rank."""
        self.set_up_as = self.rank

    def test_ranks_have_instances_of_their_own(self) -> None:
        """If this fails, a rank sees what another rank sets on `self`."""
        dist.barrier()
        self.assertEqual(self.set_up_as, self.rank)
        self.assertEqual(self.rank, dist.get_rank())
        self.assertEqual(self._current_test_name, "test_ranks_have_instances_of_their_own")

    def test_ranks_share_the_process(self) -> None:
        """If this fails, ranks do not see what `setUpClass` or a module created."""
        self.shared.append(self.rank)
        dist.barrier()
        self.assertEqual(sorted(self.shared), list(range(WORLD_SIZE)))

    def test_assertions_on_one_rank(self) -> None:
        """If this fails, an assertion for one rank is checked on all ranks, or on none."""
        self.assertEqualOnRank(self.rank, 0)
        self.assertEqualOnRank(self.rank, 2, rank=2)
        self.assertNotEqualOnRank(self.rank, 1, rank=3)
        # Tensors, whose `==` is no bool.
        mine = torch.full((3, 3), float(self.rank))
        self.assertEqualOnRank(mine, torch.zeros(3, 3))
        self.assertEqualOnRank(mine, torch.full((3, 3), 2.0), rank=2)
        self.assertNotEqualOnRank(mine, torch.ones(3, 3), rank=3)
        if self.rank == 3:
            with self.assertRaises(AssertionError):
                self.assertEqualOnRank(mine, 3 * torch.eye(3), rank=3)
            with self.assertRaises(AssertionError):
                self.assertNotEqualOnRank(mine, torch.full((3, 3), 3.0), rank=3)
            with self.assertRaises(AssertionError):
                self.assertEqualOnRank(self.rank, 0, rank=3)
            with self.assertRaises(AssertionError):
                self.assertNotEqualOnRank(self.rank, 3, rank=3)

    def test_store_is_one_for_all(self) -> None:
        """If this fails, ranks that meet in the class's store wait for ever."""
        self.global_store.set(f"rank-{self.rank}", "here")
        self.global_store.wait([f"rank-{rank}" for rank in range(WORLD_SIZE)])


def _add(body: Body) -> None:
    setattr(TestThroughTheBaseClass, f"test_{body.__name__}", lambda self: body())


for each in BODIES:
    _add(each)


class TestFailuresOfTheBaseClass:
    """Tests that fail, run by hand, so that their failure can be checked."""

    @pytest.mark.parametrize("ranks", FAILING, ids=str)
    def test_failure_in_mid_collective_fails_the_test_and_frees_the_others(self, ranks: list[int]) -> None:
        """If this fails, a rank that raises costs its test the whole time limit, or the wrong rank is blamed."""

        class Failing(MultiThreadedTestCase):
            world_size = WORLD_SIZE

            def test_it(self) -> None:
                fail_on(ranks)

        with pytest.raises(CaseFailedError) as caught:
            Failing("test_it").debug()
        verdict = caught.value.result.verdict
        assert {verdict.culprit, *verdict.failing} == set(ranks)
        assert sorted(verdict.victims) == [rank for rank in range(WORLD_SIZE) if rank not in ranks]

    def test_skip_of_all_is_a_skip(self) -> None:
        """If this fails, a test that skips counts as one that ran."""

        class Skipping(MultiThreadedTestCase):
            world_size = WORLD_SIZE

            def test_it(self) -> None:
                self.skipTest("planted reason")

        with pytest.raises(unittest.SkipTest, match="planted reason"):
            Skipping("test_it").debug()
