"""Every public name of `torch.testing._internal.common_distributed`, on this library's engine.

docs/torch_names.md lists them one by one. If the installed torch has a name that this module does not have, the name
gives an object that fails when it is used.
"""

from __future__ import annotations

# Test files import these names from torch's module, although they belong to other modules.
import faulthandler
import functools
import inspect
import itertools
import logging
import multiprocessing
import operator
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial, reduce, wraps
from io import StringIO
from typing import Any, NamedTuple, Optional, Union
from unittest.mock import patch

import torch
import torch.distributed as c10d
from torch import nn
from torch._C._autograd import DeviceType
from torch._logging._internal import trace_log

from dist_testing.compat.classes import (
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    TestCase,
    common_utils,
)
from dist_testing.compat.torchcomms import (
    TORCHCOMM_HAS_GLOO,
    TORCHCOMM_HAS_NCCL,
    TORCHCOMM_HAS_NCCLX,
    TORCHCOMM_HAS_RCCL,
    TORCHCOMM_HAS_RCCLX,
    TORCHCOMM_HAS_XCCL,
    C10dTorchCommsTestBase,
    setup_torchcomms_pg,
)
from dist_testing.compat.unknown import unknown_name
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
from dist_testing.frontends.helpers.dynamo import dynamo_dist_per_rank_init as _dynamo_dist_per_rank_init
from dist_testing.frontends.helpers.limits import TIMEOUT_OVERRIDE
from dist_testing.frontends.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule
from dist_testing.frontends.helpers.queues import retrieve_result_from_completion_queue
from dist_testing.frontends.helpers.temp_directories import current_temp_dir
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
    skip_if_win32,
    sm_is_or_higher_than,
)
from dist_testing.frontends.requirements.accelerators import DDP_RANK_DEVICES, evaluate_platform_supports_symm_mem
from dist_testing.frontends.requirements.backends import ACCELERATOR_DIST_BACKENDS
from dist_testing.frontends.requirements.worlds import skip_below_world_size
from dist_testing.frontends.unittest.spawn_threads import spawn_threads_and_init_comms
from dist_testing.skips import TEST_SKIPS, TestSkip
from dist_testing.spec import DEFAULT_WORLD_SIZE

FILE_SCHEMA: str = common_utils.FILE_SCHEMA
IS_SANDCASTLE: bool = common_utils.IS_SANDCASTLE
LazyVal: Any = common_utils.LazyVal
TEST_CUDA: bool = common_utils.TEST_CUDA
TEST_HPU: bool = common_utils.TEST_HPU
TEST_WITH_ROCM: bool = common_utils.TEST_WITH_ROCM
TEST_WITH_TSAN: bool = common_utils.TEST_WITH_TSAN
TEST_XPU: bool = common_utils.TEST_XPU
find_free_port = common_utils.find_free_port
retry_on_connect_failures = common_utils.retry_on_connect_failures
# torch's module had this name until torch 2.5.
run_tests = common_utils.run_tests
skip_but_pass_in_sandcastle = common_utils.skip_but_pass_in_sandcastle
skip_but_pass_in_sandcastle_if = common_utils.skip_but_pass_in_sandcastle_if

HAS_ACCELERATOR = TEST_CUDA or TEST_HPU or TEST_XPU
# A boolean that is computed at its first use.
PLATFORM_SUPPORTS_SYMM_MEM: Any = LazyVal(evaluate_platform_supports_symm_mem)

# The older spelling.
MultiProcContinousTest = MultiProcContinuousTest

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

TIMEOUT_DEFAULT: int

# torch has raised this limit from 3 ranks to 8, and its suites rely on the skips.
skip_if_small_worldsize = skip_below_world_size(8)

__all__ = [
    "ACCELERATOR_DIST_BACKENDS",
    "DDP_RANK_DEVICES",
    "DEFAULT_WORLD_SIZE",
    "FILE_SCHEMA",
    "HAS_ACCELERATOR",
    "IS_SANDCASTLE",
    "PLATFORM_SUPPORTS_SYMM_MEM",
    "TEST_CUDA",
    "TEST_HPU",
    "TEST_SKIPS",
    "TEST_WITH_ROCM",
    "TEST_WITH_TSAN",
    "TEST_XPU",
    "TIMEOUT_DEFAULT",
    "TIMEOUT_OVERRIDE",
    "TORCHCOMM_HAS_GLOO",
    "TORCHCOMM_HAS_NCCL",
    "TORCHCOMM_HAS_NCCLX",
    "TORCHCOMM_HAS_RCCL",
    "TORCHCOMM_HAS_RCCLX",
    "TORCHCOMM_HAS_XCCL",
    "Any",
    "C10dTorchCommsTestBase",
    "Callable",
    "DeviceType",
    "DistTestCases",
    "DistributedTestBase",
    "Enum",
    "LazyVal",
    "MultiProcContinousTest",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "NamedTuple",
    "Optional",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "StringIO",
    "TestCase",
    "TestSkip",
    "Union",
    "_dynamo_dist_per_rank_init",
    "at_least_x_gpu",
    "c10d",
    "captured_output",
    "cleanup_temp_dir",
    "common_utils",
    "contextmanager",
    "create_device",
    "create_tcp_store",
    "dataclass",
    "evaluate_platform_supports_symm_mem",
    "faulthandler",
    "find_free_port",
    "functools",
    "get_required_world_size",
    "get_timeout",
    "has_efa",
    "import_transformers_or_skip",
    "init_multigpu_helper",
    "initialize_temp_directories",
    "inspect",
    "itertools",
    "logger",
    "logging",
    "multiprocessing",
    "nccl_skip_if_lt_x_gpu",
    "nn",
    "operator",
    "os",
    "partial",
    "patch",
    "queue",
    "reduce",
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
    "retrieve_result_from_completion_queue",
    "retry_on_connect_failures",
    "run_subtests",
    "run_tests",
    "setup_torchcomms_pg",
    "simple_sparse_reduce_tests",
    "skip_but_pass_in_sandcastle",
    "skip_but_pass_in_sandcastle_if",
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
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "timedelta",
    "torch",
    "tp_transports",
    "trace_log",
    "traceback",
    "types",
    "unittest",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
    "wraps",
]

# Resolved at first use, because they load torch._dynamo, register torch's own threaded group, or read an environment
# variable that may be invalid.
_LAZY = {
    "DynamoDistributedMultiProcTestCase": "dist_testing.compat.dynamo",
    "DynamoDistributedSingleProcTestCase": "dist_testing.compat.dynamo",
    "TIMEOUT_DEFAULT": "dist_testing.frontends.helpers.limits",
    "ProcessLocalGroup": "torch.testing._internal.distributed.multi_threaded_pg",
    "_install_threaded_pg": "torch.testing._internal.distributed.multi_threaded_pg",
    "_uninstall_threaded_pg": "torch.testing._internal.distributed.multi_threaded_pg",
}


def __getattr__(name: str) -> Any:
    if name == "tmp_dir":
        return current_temp_dir()
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    return unknown_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "tmp_dir"})
