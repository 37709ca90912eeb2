"""Distributed PyTorch tests: every rank accounted for, one verdict, nothing left behind.

Two front doors, one engine: `@pytest.mark.distributed` with the `world` fixture, and `MultiProcessTestCase` for
unittest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_testing.frontends.helpers import (
    captured_output,
    cleanup_temp_dir,
    create_device,
    create_tcp_store,
    get_timeout,
    has_efa,
    initialize_temp_directories,
    run_subtests,
    simple_sparse_reduce_tests,
    tp_transports,
    verify_ddp_error_logged,
    with_dist_debug_levels,
    with_nccl_blocking_wait,
)
from dist_testing.frontends.helpers.backend_features import DistTestCases
from dist_testing.frontends.requirements import (
    at_least_x_gpu,
    get_required_world_size,
    import_transformers_or_skip,
    init_multigpu_helper,
    nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend,
    requires_accelerator_dist_backend,
    requires_ddp_rank,
    requires_gloo,
    requires_mpi,
    requires_multicast_support,
    requires_nccl,
    requires_nccl_shrink,
    requires_nccl_version,
    requires_ucc,
    requires_world_size,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    skip_if_odd_worldsize,
    skip_if_rocm_arch_multiprocess,
    skip_if_rocm_multiprocess,
    skip_if_rocm_ver_lessthan_multiprocess,
    skip_if_small_worldsize,
    skip_if_win32,
    sm_is_or_higher_than,
)
from dist_testing.frontends.unittest.classes import (
    DistributedTestBase,
    MultiProcContinousTest,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)
from dist_testing.frontends.unittest.exits import expected_exits
from dist_testing.frontends.unittest.spawn_threads import spawn_threads_and_init_comms
from dist_testing.run_tests import run_tests
from dist_testing.skips import TEST_SKIPS, TestSkip
from dist_testing.world import World

if TYPE_CHECKING:
    from dist_testing.frontends.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule

__all__ = [
    "TEST_SKIPS",
    "DistTestCases",
    "DistributedTestBase",
    "MultiProcContinousTest",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "TestSkip",
    "World",
    "at_least_x_gpu",
    "captured_output",
    "cleanup_temp_dir",
    "create_device",
    "create_tcp_store",
    "expected_exits",
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
    "run_subtests",
    "run_tests",
    "simple_sparse_reduce_tests",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_odd_worldsize",
    "skip_if_rocm_arch_multiprocess",
    "skip_if_rocm_multiprocess",
    "skip_if_rocm_ver_lessthan_multiprocess",
    "skip_if_small_worldsize",
    "skip_if_win32",
    "sm_is_or_higher_than",
    "spawn_threads_and_init_comms",
    "tp_transports",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
]

# They are classes of torch's, and torch takes a second to import.
_MODELS = ("SaveForwardInputsModel", "SaveForwardInputsModule")


def __getattr__(name: str) -> Any:
    """Load what costs an import of torch, when it is asked for."""
    if name not in _MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dist_testing.frontends.helpers import models

    return getattr(models, name)
