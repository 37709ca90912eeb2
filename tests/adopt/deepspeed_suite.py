"""A suite in the style of DeepSpeed's, on a small model of its harness (`deepspeed_harness.py`).

`pytest -p deepspeed_harness deepspeed_suite.py`, in this folder, runs it under that harness; with `-p
dist_testing.adopt.deepspeed` before, on the engine.
"""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deepspeed_harness import DistributedFixture, DistributedTest, dist_fixture


class written_by_ranks(DistributedFixture):  # as the original
    world_size = 3

    def run(self, shared: Any) -> None:
        Path(shared, f"{dist.get_rank()}-of-{dist.get_world_size()}").touch()


written = dist_fixture(written_by_ranks)


@pytest.fixture
def shared(tmpdir: Any) -> str:
    return str(tmpdir)


class TestSizes(DistributedTest):
    world_size = [1, 3]  # noqa: RUF012  # as the original

    def test_list(self, shared: str) -> None:
        Path(shared, f"seen-{dist.get_world_size()}").touch()
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == dist.get_world_size() == int(os.environ["WORLD_SIZE"])

    @pytest.mark.world_size(2)
    def test_mark(self) -> None:
        assert dist.get_world_size() == 2

    @pytest.mark.parametrize("world_size", [2])
    def test_parameter(self, world_size: int) -> None:
        assert dist.get_world_size() == world_size


class TestValues(DistributedTest):
    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
    def test_parameters(self, dtype: torch.dtype, shared: str) -> None:
        value = torch.ones(1, dtype=dtype)
        dist.all_reduce(value)
        assert value.item() == 2

    def test_skips(self) -> None:
        pytest.skip("on every rank")

    def test_fails(self) -> None:
        assert dist.get_rank() == 0


class TestFixture(DistributedTest):
    world_size = 1

    def test_fixture(self, written: Any, shared: str) -> None:
        assert sorted(os.listdir(shared))[:3] == ["0-of-3", "1-of-3", "2-of-3"]


class TestNonDaemonic(DistributedTest):
    non_daemonic_procs = True

    def test_passes(self) -> None:
        assert dist.get_world_size() == 2

    def test_skips(self) -> None:
        pytest.skip("by a queue")


class TestWithoutGroup(DistributedTest):
    init_distributed = False
    set_dist_env = False

    def test_no_group(self) -> None:
        assert not dist.is_initialized()
        assert "RANK" not in os.environ


class TestReuse(DistributedTest):
    reuse_dist_env = True

    def test_first(self) -> None:
        assert dist.get_world_size() == 2

    def test_second(self) -> None:
        assert dist.get_world_size() == 2


class TestNeedsCuda(DistributedTest):
    requires_cuda_env = True

    def test_never(self) -> None:
        raise AssertionError
