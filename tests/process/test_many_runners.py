"""Many runners on one machine at once: they never contend for a port, and all pass."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.children import Ended, assert_no_folder_left, start_pytest, write_file
from tests.support.starter import LIMIT_S, Starter

# Small, for every run; a stress run sets hundreds.
_RUNNERS = int(os.environ.get("DIST_TESTING_STRESS_RUNNERS", "6"))
_CASES = 3


def test_runners_do_not_disturb_each_other(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run in a thousand loses its port, because it was chosen, released and bound again."""
    folders = [tmp_path / str(number) for number in range(_RUNNERS)]
    for folder in folders:
        source = f"""
            import os
            import pytest
            import torch
            import torch.distributed as dist

            @pytest.mark.distributed(world_size=2, timeout=600)
            @pytest.mark.parametrize("number", range({_CASES}))
            def test_sums(world, number):
                total = torch.full((1,), float({folder.name}))
                dist.all_reduce(total)
                assert total.item() == 2 * {folder.name}

            @pytest.mark.distributed(world_size=2, timeout=600, init=False)
            @pytest.mark.parametrize("number", range({_CASES}))
            def test_rendezvous_by_environment(world, number):
                dist.init_process_group("gloo", init_method="env://")
                dist.barrier()
                dist.destroy_process_group()
        """
        write_file(folder, "test_cases.py", source)
    children = [start_pytest(starter, folder, "-rA", "test_cases.py") for folder in folders]
    for child in children:
        code = child.wait(LIMIT_S + _RUNNERS)
        assert code == 0, child.log
        assert len(Ended(code, child.log).outcomes()) == 2 * _CASES
        assert_no_folder_left(child.folder)
