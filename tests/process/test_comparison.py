"""torch's comparison of tensors on a rank: what it costs, and that it judges as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases
from tests.support.starter import Starter

_CASES = """
    import sys
    import pytest
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    ranks = pytest.mark.distributed(world_size=2)
    # torch 2.10's own test library imports it.
    BEFORE = "torch.distributed.tensor" in sys.modules

    @ranks
    def test_plain(world):
        torch.testing.assert_close(torch.ones(2), torch.ones(2))
        with pytest.raises(AssertionError, match="not close"):
            torch.testing.assert_close(torch.ones(2), torch.zeros(2))
        assert ("torch.distributed.tensor" in sys.modules) is BEFORE

    class OldTest(MultiProcessTestCase):
        world_size = 2

        def test_equal(self):
            self.assertEqual(torch.ones(2), torch.ones(2))
            self.assertNotEqual(torch.ones(2), torch.zeros(2))
            assert ("torch.distributed.tensor" in sys.modules) is BEFORE

    # Older releases cannot compare DTensors.
    @ranks
    @pytest.mark.skipif(torch.__version__.startswith(("2.10.", "2.11.")), reason="torch compares DTensors since 2.12")
    def test_sharded(world):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        mesh = init_device_mesh("cpu", (2,))
        one, same = (distribute_tensor(torch.arange(4.0), mesh, [Shard(0)]) for _ in range(2))
        torch.testing.assert_close(one, same)
        with pytest.raises(AssertionError, match="not close"):
            torch.testing.assert_close(one, one + 1)
        with pytest.raises(AssertionError, match="placements"):
            torch.testing.assert_close(one, distribute_tensor(torch.arange(4.0), mesh, [Replicate()]))
        with pytest.raises(TypeError, match="ambiguous"):
            torch.testing.assert_close(one, torch.arange(4.0))
    """


@pytest.mark.parametrize("isolation", ["fork", "pool", "spawn"])
def test_only_users_of_dtensor_import_it(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, each fresh rank that compares tensors imports 500 modules, or DTensors are compared wrongly."""
    options = ("-p", "dist_testing.compat.pytest_install", f"--dist-isolation={isolation}")
    ended = run_cases(starter, tmp_path, _CASES, *options)
    assert ended.code == 0, ended.log
    assert {"test_plain", "test_equal"} <= ended.outcomes().keys(), ended.log
