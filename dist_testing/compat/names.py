"""The public functions and tables that `dist_testing` and `dist_testing.compat.common_distributed` both have.

Both import all of them with a star, so a new name is added in this module only.
"""

from typing import TYPE_CHECKING

from dist_testing.compat.helpers.environment import cleanup_temp_dir as cleanup_temp_dir
from dist_testing.compat.helpers.environment import core_dumps_disabled as core_dumps_disabled
from dist_testing.compat.helpers.environment import create_device as create_device
from dist_testing.compat.helpers.environment import create_tcp_store as create_tcp_store
from dist_testing.compat.helpers.environment import get_timeout as get_timeout
from dist_testing.compat.helpers.environment import has_efa as has_efa
from dist_testing.compat.helpers.environment import initialize_temp_directories as initialize_temp_directories
from dist_testing.compat.helpers.environment import tp_transports as tp_transports
from dist_testing.compat.helpers.environment import with_dist_debug_levels as with_dist_debug_levels
from dist_testing.compat.helpers.environment import with_nccl_blocking_wait as with_nccl_blocking_wait
from dist_testing.compat.helpers.running import DistTestCases as DistTestCases
from dist_testing.compat.helpers.running import captured_output as captured_output
from dist_testing.compat.helpers.running import run_subtests as run_subtests
from dist_testing.compat.helpers.running import simple_sparse_reduce_tests as simple_sparse_reduce_tests
from dist_testing.compat.helpers.running import verify_ddp_error_logged as verify_ddp_error_logged
from dist_testing.compat.requirements.accelerators import at_least_x_gpu as at_least_x_gpu
from dist_testing.compat.requirements.accelerators import get_required_world_size as get_required_world_size
from dist_testing.compat.requirements.accelerators import init_multigpu_helper as init_multigpu_helper
from dist_testing.compat.requirements.accelerators import nccl_skip_if_lt_x_gpu as nccl_skip_if_lt_x_gpu
from dist_testing.compat.requirements.accelerators import (
    require_n_gpus_for_nccl_backend as require_n_gpus_for_nccl_backend,
)
from dist_testing.compat.requirements.accelerators import requires_ddp_rank as requires_ddp_rank
from dist_testing.compat.requirements.accelerators import requires_multicast_support as requires_multicast_support
from dist_testing.compat.requirements.accelerators import requires_world_size as requires_world_size
from dist_testing.compat.requirements.accelerators import skip_if_lt_x_gpu as skip_if_lt_x_gpu
from dist_testing.compat.requirements.accelerators import skip_if_no_gpu as skip_if_no_gpu
from dist_testing.compat.requirements.accelerators import skip_if_odd_worldsize as skip_if_odd_worldsize
from dist_testing.compat.requirements.accelerators import sm_is_or_higher_than as sm_is_or_higher_than
from dist_testing.compat.requirements.platforms import import_transformers_or_skip as import_transformers_or_skip
from dist_testing.compat.requirements.platforms import (
    requires_accelerator_dist_backend as requires_accelerator_dist_backend,
)
from dist_testing.compat.requirements.platforms import requires_gloo as requires_gloo
from dist_testing.compat.requirements.platforms import requires_mpi as requires_mpi
from dist_testing.compat.requirements.platforms import requires_nccl as requires_nccl
from dist_testing.compat.requirements.platforms import requires_nccl_shrink as requires_nccl_shrink
from dist_testing.compat.requirements.platforms import requires_nccl_version as requires_nccl_version
from dist_testing.compat.requirements.platforms import requires_ucc as requires_ucc
from dist_testing.compat.requirements.platforms import requires_xccl as requires_xccl
from dist_testing.compat.requirements.platforms import skip_if_rocm_arch_multiprocess as skip_if_rocm_arch_multiprocess
from dist_testing.compat.requirements.platforms import skip_if_rocm_multiprocess as skip_if_rocm_multiprocess
from dist_testing.compat.requirements.platforms import (
    skip_if_rocm_ver_atleast_multiprocess as skip_if_rocm_ver_atleast_multiprocess,
)
from dist_testing.compat.requirements.platforms import (
    skip_if_rocm_ver_lessthan_multiprocess as skip_if_rocm_ver_lessthan_multiprocess,
)
from dist_testing.compat.requirements.platforms import skip_if_win32 as skip_if_win32
from dist_testing.core.ground.skips import TEST_SKIPS as TEST_SKIPS
from dist_testing.core.ground.skips import TestSkip as TestSkip
from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms as spawn_threads_and_init_comms

if not TYPE_CHECKING:
    # Tools for types know the names by the form of their imports.
    __all__ = [_name for _name in globals() if not _name.startswith("_") and _name != "TYPE_CHECKING"]
