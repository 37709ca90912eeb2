"""Every public name of `torch.testing._internal.common_distributed`, on this library's engine.

docs/evidence/torch_names.md lists them. A name that the installed torch has and this module does not is the object that
torch's module imports, such as `os`, or else an object that raises an error at its first use.
"""

from __future__ import annotations

import abc
import importlib
import logging

# Names that torch's module imported until torch 2.5.
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union  # noqa: UP035

# A name that torch's module imported until torch 2.14.
from unittest.mock import patch

from dist_testing.compat import before_torch as _before_torch  # noqa: F401
from dist_testing.compat import names as _names
from dist_testing.compat import torchcomms as _torchcomms
from dist_testing.compat.classes import (
    DEFAULT_WORLD_SIZE,
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    TestCase,
    common_utils,
)
from dist_testing.compat.helpers.environment import TIMEOUT_OVERRIDE, current_temp_dir, default_timeout
from dist_testing.compat.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule
from dist_testing.compat.helpers.running import dynamo_dist_per_rank_init as _dynamo_dist_per_rank_init
from dist_testing.compat.helpers.running import retrieve_result_from_completion_queue
from dist_testing.compat.names import *  # noqa: F403
from dist_testing.compat.requirements.accelerators import (
    DDP_RANK_DEVICES,
    evaluate_platform_supports_symm_mem,
    skip_below_world_size,
)
from dist_testing.compat.requirements.platforms import ACCELERATOR_DIST_BACKENDS
from dist_testing.compat.requirements.platforms import rocm_version as _rocm_version_tuple
from dist_testing.compat.requirements.requirement import handle_test_skip as _maybe_handle_skip_if_lt_x_gpu
from dist_testing.compat.torchcomms import *  # noqa: F403
from dist_testing.compat.unknown import imported_names, name_of_torch

# A name of torch's module until torch 2.5.
run_tests = common_utils.run_tests

HAS_ACCELERATOR: bool = common_utils.TEST_CUDA or common_utils.TEST_HPU or common_utils.TEST_XPU
# A boolean that is computed at its first use. torch's class is not fully typed.
PLATFORM_SUPPORTS_SYMM_MEM: Any = common_utils.LazyVal(evaluate_platform_supports_symm_mem)  # type: ignore[call-arg]

# Until torch 2.5, the cached result of `has_efa`; None before its first call.
EFA_PROBE_RESULT: bool | None = None

# The older spelling.
MultiProcContinousTest = MultiProcContinuousTest

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

TIMEOUT_DEFAULT: int

# torch has raised the limit from 3 ranks to 8, and its suites rely on it.
skip_if_small_worldsize = skip_below_world_size(8)

__all__ = ["ACCELERATOR_DIST_BACKENDS", "DDP_RANK_DEVICES", "DEFAULT_WORLD_SIZE", "EFA_PROBE_RESULT"]
__all__ += ["HAS_ACCELERATOR", "PLATFORM_SUPPORTS_SYMM_MEM", "TIMEOUT_DEFAULT", "TIMEOUT_OVERRIDE", "Dict"]
__all__ += ["DistributedTestBase", "List", "MultiProcContinousTest", "MultiProcContinuousTest", "MultiProcessTestCase"]
__all__ += ["MultiThreadedTestCase", "Optional", "SaveForwardInputsModel", "SaveForwardInputsModule", "TestCase"]
__all__ += ["Tuple", "Union", "_dynamo_dist_per_rank_init", "_maybe_handle_skip_if_lt_x_gpu", "_rocm_version_tuple"]
__all__ += ["abc", "evaluate_platform_supports_symm_mem", "logger", "patch", "retrieve_result_from_completion_queue"]
__all__ += ["run_tests", "skip_if_small_worldsize"]
if not TYPE_CHECKING:
    __all__ += _names.__all__ + _torchcomms.__all__

_OF_DYNAMO = ("DynamoDistributedMultiProcTestCase", "DynamoDistributedSingleProcTestCase")


def __getattr__(name: str) -> Any:
    if name == "tmp_dir":
        return current_temp_dir()
    # Not at import: a wrong variable is an error only in a run with torch-style tests, and gets a report there.
    if name == "TIMEOUT_DEFAULT":
        return default_timeout()
    if name in _OF_DYNAMO:
        return getattr(importlib.import_module("dist_testing.compat.dynamo"), name)
    return name_of_torch(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_DYNAMO, *imported_names(), "TIMEOUT_DEFAULT", "tmp_dir"})
