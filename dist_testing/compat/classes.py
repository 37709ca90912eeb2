"""torch's test classes: the mixins of the unittest front end, on torch's own `TestCase`."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import unittest
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dist_testing.compat.device import DeviceCase
from dist_testing.compat.helpers.environment import TIMEOUT_OVERRIDE, get_timeout
from dist_testing.compat.requirements.accelerators import accelerator_count
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE as _RANKS
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.core.unittest.process import ProcessCase
from dist_testing.core.unittest.world_case import WorldCase
from dist_testing.threaded.thread_case import ThreadCase

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

try:
    from torch.testing._internal import common_utils as common_utils
except ImportError as error:
    raise UsageError(
        f"dist_testing.compat: torch.testing._internal.common_utils cannot be imported: {error}.\n"
        "torch's TestCase, the base of the classes, needs the packages expecttest and numpy, which torch does not "
        "install, and in torch 2.10 also setuptools.\n"
        "Install them: pip install expecttest numpy 'setuptools<82'; under Bazel, add them to the target's deps."
    ) from error

# It registers the backend "fake". torch's own module does so through other imports, and its tests use that backend.
importlib.import_module("torch.testing._internal.distributed.fake_pg")

if TYPE_CHECKING:
    # torch's module is not typed.
    class TestCase(unittest.TestCase):
        """torch's own base class."""
else:
    TestCase = common_utils.TestCase


DEFAULT_WORLD_SIZE = _RANKS
if common_utils.TEST_WITH_ROCM:
    # As in torch: ranks on ROCm need a GPU each, two of them at least, and one test of DistributedDataParallel is slow.
    DEFAULT_WORLD_SIZE = min(_RANKS, max(2, accelerator_count()))
    TIMEOUT_OVERRIDE["test_join_kwargs"] = 200

# Variables that torchrun and the engine set. torch's classes do not set them, and their tests rely on that.
# WORLD_SIZE stays: torch's decorators read it.
_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class _TorchBehaviour(WorldCase):
    """Behaviour of torch's classes that ours do not have."""

    # As in torch, `sys.exit(0)` on a rank is a pass of that rank.
    exit_0_passes: ClassVar[bool] = True

    @property
    def case_timeout_s(self) -> float:  # type: ignore[override]  # differs from method to method
        """Limit in seconds, by the method's name: `TIMEOUT_OVERRIDE`, else `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT`."""
        return float(get_timeout(self.id()))

    _limit_switch = (
        'TIMEOUT_OVERRIDE["the method\'s name"] of this module, or the variable DISTRIBUTED_TESTS_DEFAULT_TIMEOUT'
    )

    def _should_stop_test_suite(self) -> bool:
        # torch's own asks CUDA, which the runner must not initialise.
        return False


class _TorchEnvironment(_TorchBehaviour):
    """Ranks with the runner's environment, without torchrun's variables."""

    @classmethod
    def _open_rank(cls, rank: int, world_size: int, directory: str) -> None:
        for name in _TORCHRUN_VARIABLES:
            os.environ.pop(name, None)
        # As in torch's ranks: a process that the test starts itself is a fresh interpreter, which can use CUDA.
        with contextlib.suppress(RuntimeError):
            # The file has chosen another method.
            multiprocessing.set_start_method("spawn")
        super()._open_rank(rank, world_size, directory)


class RanksFailedError(CaseFailedError, RuntimeError):
    """A test failed on its ranks. The text begins with that of the RuntimeError of torch's class, which tests match."""


def _in_torchs_words(error: CaseFailedError, raised: str, hung: str) -> CaseFailedError:
    """Put torch's lines before the report: one for each rank that raised, or for the first one that hung."""
    outcomes = error.result.outcomes
    lines = [f"{raised.format(one.rank)}:\n{one.summary}\n" for one in outcomes if one.kind is Kind.RAISED]
    if not lines:
        hangs = (one.rank for one in outcomes if one.kind is Kind.HUNG)
        lines = [f"{hung.format(rank)} {error.result.duration_s} seconds\n" for rank in hangs][:1]
    return RanksFailedError("".join(lines) + f"\n{error}", error.result) if lines else error


class MultiProcessTestCase(_TorchEnvironment, ProcessCase, TestCase):
    """Runs each test on the processes of a fresh world; see `dist_testing.MultiProcessTestCase`."""

    def _judge(self, result: CaseResult) -> None:
        try:
            super()._judge(result)
        except CaseFailedError as error:
            raised = f"Process {{}} exited with error code {self.TEST_ERROR_EXIT_CODE} and exception"
            raise _in_torchs_words(error, raised, "Process {} terminated or timed out after") from None


class DistributedTestBase(DeviceCase, MultiProcessTestCase):
    """Runs tests that are made for each kind of device; see `dist_testing.DistributedTestBase`."""


class MultiThreadedTestCase(_TorchBehaviour, ThreadCase, TestCase):
    """Runs each test on threads of this process; see `dist_testing.MultiThreadedTestCase`."""

    @classmethod
    def _check_return_codes(cls, failed_ranks: Any, timeout: float, fn: Callable[[], Any]) -> None:
        try:
            super()._check_return_codes(failed_ranks, timeout, fn)
        except CaseFailedError as error:
            raised, hung = "Thread {} exited with exception", "Thread {} terminated or timed out after"
            raise _in_torchs_words(error, raised, hung) from None


class MultiProcContinuousTest(_TorchEnvironment, ContinuousCase, TestCase):
    """Runs the tests of a class on the processes of one world; see `dist_testing.MultiProcContinuousTest`."""

    keeps_state: ClassVar[bool | Sequence[str]] = True
    # Simulations of a world in one process derive from this class, and read the attribute before they set it.
    _processes_spawned: ClassVar[bool] = False
