"""Settings that torch reads once, when it is imported: import this module first."""

from __future__ import annotations

import os

from dist_testing.core.engine.rank_env import show_cpp_stacks
from dist_testing.core.launch.clean import spare_cuda

# As torch's own test classes do.
show_cpp_stacks(os.environ)
# torch's module counts devices at its import.
spare_cuda()
