"""A program that every rank runs: fails unless Bazel, Python and torchrun would have started it so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import counted_steps  # type: ignore[import-not-found]  # beside this file, where mypy does not look
import torch
import torch.distributed as dist

dist.init_process_group(os.environ.get("DIST_TESTING_BACKEND"))
total = torch.full((1,), float(dist.get_rank()))
dist.all_reduce(total)
assert total.item() == sum(range(dist.get_world_size()))
# The package's folder in the runfiles, where Bazel has put the other sources.
assert sys.path[0] == str(Path(__file__).parent)
assert "runfiles" in sys.path[0], sys.path
assert sys.argv == [__file__, "--steps=3", "a b"], sys.argv
for step in counted_steps.steps(sys.argv[1]):
    dist.barrier()
    print(f"step {step}")
dist.destroy_process_group()
