"""What distributed tests need again and again: stores, devices, limits, environments, inputs, models.

Nothing here imports torch before it is used; `models` does, since its classes are torch modules.
"""

from __future__ import annotations

from dist_testing.frontends.helpers.ddp import verify_ddp_error_logged
from dist_testing.frontends.helpers.environment import with_dist_debug_levels, with_nccl_blocking_wait
from dist_testing.frontends.helpers.limits import get_timeout
from dist_testing.frontends.helpers.output import captured_output
from dist_testing.frontends.helpers.sparse import simple_sparse_reduce_tests
from dist_testing.frontends.helpers.stores import create_device, create_tcp_store
from dist_testing.frontends.helpers.subtests import run_subtests
from dist_testing.frontends.helpers.temp_directories import cleanup_temp_dir, initialize_temp_directories
from dist_testing.frontends.helpers.transports import has_efa, tp_transports

__all__ = [
    "captured_output",
    "cleanup_temp_dir",
    "create_device",
    "create_tcp_store",
    "get_timeout",
    "has_efa",
    "initialize_temp_directories",
    "run_subtests",
    "simple_sparse_reduce_tests",
    "tp_transports",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
]
