"""Every public name of `torch.testing._internal.common_distributed`, on this library's engine.

docs/torch_names.md lists them. A name that the installed torch has and this module does not is an object that raises an
error at its first use.
"""

from __future__ import annotations

# Names that torch's module imports itself, or imported until torch 2.5, and that test files import from it.
import abc
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
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035  # the names are what counts
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
from dist_testing.frontends import names as _names
from dist_testing.frontends.helpers.environment import TIMEOUT_OVERRIDE, current_temp_dir
from dist_testing.frontends.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule
from dist_testing.frontends.helpers.running import dynamo_dist_per_rank_init as _dynamo_dist_per_rank_init
from dist_testing.frontends.helpers.running import retrieve_result_from_completion_queue
from dist_testing.frontends.names import *  # noqa: F403
from dist_testing.frontends.requirements.accelerators import DDP_RANK_DEVICES, evaluate_platform_supports_symm_mem
from dist_testing.frontends.requirements.backends import ACCELERATOR_DIST_BACKENDS
from dist_testing.frontends.requirements.worlds import skip_below_world_size
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
# A name of torch's module until torch 2.5.
run_tests = common_utils.run_tests
skip_but_pass_in_sandcastle = common_utils.skip_but_pass_in_sandcastle
skip_but_pass_in_sandcastle_if = common_utils.skip_but_pass_in_sandcastle_if

HAS_ACCELERATOR = TEST_CUDA or TEST_HPU or TEST_XPU
# A boolean that is computed at its first use.
PLATFORM_SUPPORTS_SYMM_MEM: Any = LazyVal(evaluate_platform_supports_symm_mem)

# Until torch 2.5, the cached result of `has_efa`; None before its first call.
EFA_PROBE_RESULT: bool | None = None

# The older spelling.
MultiProcContinousTest = MultiProcContinuousTest

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

TIMEOUT_DEFAULT: int

# torch has raised the limit from 3 ranks to 8, and its suites rely on it.
skip_if_small_worldsize = skip_below_world_size(8)

__all__ = [
    "ACCELERATOR_DIST_BACKENDS",
    "DDP_RANK_DEVICES",
    "DEFAULT_WORLD_SIZE",
    "EFA_PROBE_RESULT",
    "FILE_SCHEMA",
    "HAS_ACCELERATOR",
    "IS_SANDCASTLE",
    "PLATFORM_SUPPORTS_SYMM_MEM",
    "TEST_CUDA",
    "TEST_HPU",
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
    "Dict",
    "DistributedTestBase",
    "Enum",
    "LazyVal",
    "List",
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
    "Tuple",
    "Union",
    "_dynamo_dist_per_rank_init",
    "abc",
    "c10d",
    "common_utils",
    "contextmanager",
    "dataclass",
    "evaluate_platform_supports_symm_mem",
    "faulthandler",
    "find_free_port",
    "functools",
    "inspect",
    "itertools",
    "logger",
    "logging",
    "multiprocessing",
    "nn",
    "operator",
    "os",
    "partial",
    "patch",
    "queue",
    "reduce",
    "retrieve_result_from_completion_queue",
    "retry_on_connect_failures",
    "run_tests",
    "setup_torchcomms_pg",
    "skip_but_pass_in_sandcastle",
    "skip_but_pass_in_sandcastle_if",
    "skip_if_small_worldsize",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "timedelta",
    "torch",
    "trace_log",
    "traceback",
    "types",
    "unittest",
    "wraps",
]
__all__ += _names.__all__

# Loaded at first use only: these load torch._dynamo, register torch's own threaded group, or read a variable that may
# be wrong.
_LAZY = {
    "DynamoDistributedMultiProcTestCase": "dist_testing.compat.dynamo",
    "DynamoDistributedSingleProcTestCase": "dist_testing.compat.dynamo",
    "TIMEOUT_DEFAULT": "dist_testing.frontends.helpers.environment",
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
