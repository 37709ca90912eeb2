"""Decorators that say what a test needs: what is missing is a skip with a reason, if possible before ranks start."""

from __future__ import annotations

from dist_testing.frontends.requirements.accelerators import (
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
from dist_testing.frontends.requirements.backends import (
    requires_accelerator_dist_backend,
    requires_gloo,
    requires_mpi,
    requires_nccl,
    requires_nccl_shrink,
    requires_nccl_version,
    requires_ucc,
)
from dist_testing.frontends.requirements.platforms import (
    import_transformers_or_skip,
    skip_if_rocm_arch_multiprocess,
    skip_if_rocm_multiprocess,
    skip_if_rocm_ver_lessthan_multiprocess,
    skip_if_win32,
)
from dist_testing.frontends.requirements.worlds import (
    get_required_world_size,
    requires_world_size,
    skip_if_odd_worldsize,
    skip_if_small_worldsize,
)

__all__ = [
    "at_least_x_gpu",
    "get_required_world_size",
    "import_transformers_or_skip",
    "init_multigpu_helper",
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
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_odd_worldsize",
    "skip_if_rocm_arch_multiprocess",
    "skip_if_rocm_multiprocess",
    "skip_if_rocm_ver_lessthan_multiprocess",
    "skip_if_small_worldsize",
    "skip_if_win32",
    "sm_is_or_higher_than",
]
