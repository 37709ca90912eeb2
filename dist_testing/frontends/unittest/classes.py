"""The unittest door: test classes whose methods run on every rank of a world.

Each is its logic, which `cases` holds, on a base class that compares tensors.
"""

from __future__ import annotations

from dist_testing.frontends.unittest.comparison import TensorComparisons
from dist_testing.frontends.unittest.continuous import ContinuousCase
from dist_testing.frontends.unittest.device import DeviceCase
from dist_testing.frontends.unittest.process import ProcessCase
from dist_testing.frontends.unittest.threads import ThreadCase

__all__ = [
    "DistributedTestBase",
    "MultiProcContinousTest",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
]


class MultiProcessTestCase(ProcessCase, TensorComparisons):
    """Each test runs on fresh rank processes. `ProcessCase` says how; `assertEqual` compares tensors."""


class DistributedTestBase(DeviceCase, MultiProcessTestCase):
    """Each test runs on fresh rank processes, on any kind of device. `DeviceCase` says how."""


class MultiProcContinuousTest(ContinuousCase, TensorComparisons):
    """All tests share ranks and a process group. `ContinuousCase` says how; `assertEqual` compares tensors."""


class MultiThreadedTestCase(ThreadCase, TensorComparisons):
    """Each test runs on threads of the runner's process. `ThreadCase` says how; `assertEqual` compares tensors."""


# As torch spelt it at first.
MultiProcContinousTest = MultiProcContinuousTest
