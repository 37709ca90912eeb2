"""The test classes of the unittest front end: their methods run on every rank of a world.

Each combines its logic, a mixin from another module of this folder, with a base class that compares tensors.
"""

from __future__ import annotations

from dist_testing.compat.device import DeviceCase
from dist_testing.core.unittest.comparison import TensorComparisons
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.core.unittest.process import ProcessCase
from dist_testing.threaded.thread_case import ThreadCase


class MultiProcessTestCase(ProcessCase, TensorComparisons):
    """Runs each test on fresh rank processes. See `ProcessCase` for the rules; `assertEqual` compares tensors."""


class DistributedTestBase(DeviceCase, MultiProcessTestCase):
    """Runs each test on fresh rank processes, for any kind of device. See `DeviceCase` for the rules."""


class MultiProcContinuousTest(ContinuousCase, TensorComparisons):
    """Runs all tests on the same ranks and process group. See `ContinuousCase`; `assertEqual` compares tensors."""


class MultiThreadedTestCase(ThreadCase, TensorComparisons):
    """Runs each test on threads of the runner's process. See `ThreadCase`; `assertEqual` compares tensors."""


# The first spelling in torch.
MultiProcContinousTest = MultiProcContinuousTest
