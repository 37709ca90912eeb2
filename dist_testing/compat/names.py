"""The public functions and tables that `dist_testing` and `dist_testing.compat.common_distributed` both have.

Both import all of them with a star, so a new name is added in this module only.
"""

from __future__ import annotations

from dist_testing.compat.helpers.environment import (
    cleanup_temp_dir,
    core_dumps_disabled,
    get_timeout,
    has_efa,
    initialize_temp_directories,
    tp_transports,
    with_dist_debug_levels,
    with_nccl_blocking_wait,
)
from dist_testing.compat.helpers.inputs import DistTestCases, simple_sparse_reduce_tests
from dist_testing.compat.helpers.running import captured_output, run_subtests, verify_ddp_error_logged
from dist_testing.compat.helpers.stores import create_device, create_tcp_store
from dist_testing.compat.requirements.accelerators import (
    at_least_x_gpu,
    init_multigpu_helper,
    nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend,
    requires_ddp_rank,
    requires_multicast_support,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    sm_is_or_higher_than,
)
from dist_testing.compat.requirements.platforms import (
    import_transformers_or_skip,
    requires_accelerator_dist_backend,
    requires_gloo,
    requires_mpi,
    requires_nccl,
    requires_nccl_shrink,
    requires_nccl_version,
    requires_ucc,
    requires_xccl,
    skip_if_rocm_arch_multiprocess,
    skip_if_rocm_multiprocess,
    skip_if_rocm_ver_atleast_multiprocess,
    skip_if_rocm_ver_lessthan_multiprocess,
    skip_if_win32,
)
from dist_testing.compat.requirements.worlds import (
    get_required_world_size,
    requires_world_size,
    skip_if_odd_worldsize,
)
from dist_testing.core.ground.skips import TEST_SKIPS, TestSkip
from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms

__all__ = [
    "TEST_SKIPS",
    "DistTestCases",
    "TestSkip",
    "at_least_x_gpu",
    "captured_output",
    "cleanup_temp_dir",
    "core_dumps_disabled",
    "create_device",
    "create_tcp_store",
    "get_required_world_size",
    "get_timeout",
    "has_efa",
    "import_transformers_or_skip",
    "init_multigpu_helper",
    "initialize_temp_directories",
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_accelerator_dist_backend",
    "requires_ddp_rank",
    "requires_gloo",
    "requires_mpi",
    "requires_multicast_support",
    "requires_nccl",
    "requires_nccl_shrink",
    "requires_nccl_version",
    "requires_ucc",
    "requires_world_size",
    "requires_xccl",
    "run_subtests",
    "simple_sparse_reduce_tests",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_odd_worldsize",
    "skip_if_rocm_arch_multiprocess",
    "skip_if_rocm_multiprocess",
    "skip_if_rocm_ver_atleast_multiprocess",
    "skip_if_rocm_ver_lessthan_multiprocess",
    "skip_if_win32",
    "sm_is_or_higher_than",
    "spawn_threads_and_init_comms",
    "tp_transports",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
]
