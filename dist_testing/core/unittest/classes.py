"""The test classes of the core: their methods run on every rank of a world.

Each combines its logic, a mixin from another module of this folder, with the base class that compares tensors.
"""

from __future__ import annotations

from dist_testing.core.unittest.comparison import TensorComparisons
from dist_testing.core.unittest.continuous import ContinuousCase
from dist_testing.core.unittest.process import ProcessCase


class MultiProcessTestCase(ProcessCase, TensorComparisons):
    """Runs each test on fresh rank processes. See `ProcessCase` for the rules; `assertEqual` compares tensors."""


class MultiProcContinuousTest(ContinuousCase, TensorComparisons):
    """Runs all tests on the same ranks and process group. See `ContinuousCase`; `assertEqual` compares tensors."""


# The first spelling in torch.
MultiProcContinousTest = MultiProcContinuousTest
