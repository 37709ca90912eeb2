"""The public names of `dist_testing`. `dist_testing/__init__.py` imports this module when one of them is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_testing.compat import names as _names
from dist_testing.compat.names import *  # noqa: F403
from dist_testing.compat.requirements.worlds import skip_if_small_worldsize
from dist_testing.core.ground.case import RunFailedError
from dist_testing.core.ground.world import World
from dist_testing.core.unittest.exits import expected_exits
from dist_testing.nodes.planned import planned_faults
from dist_testing.run.call.run import run
from dist_testing.run.start_processes import start_processes
from dist_testing.run_tests import run_tests
from dist_testing.test_classes import (
    DistributedTestBase,
    MultiProcContinousTest,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)

if TYPE_CHECKING:
    from dist_testing.compat.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule

__all__ = [
    "DistributedTestBase",
    "MultiProcContinousTest",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "RunFailedError",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "World",
    "expected_exits",
    "planned_faults",
    "run",
    "run_tests",
    "skip_if_small_worldsize",
    "start_processes",
]
__all__ += _names.__all__

# They derive from torch's classes, and the import of torch takes a second.
_MODELS = ("SaveForwardInputsModel", "SaveForwardInputsModule")


def __getattr__(name: str) -> Any:
    """Load a name that needs the import of torch, at its first use."""
    if name not in _MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dist_testing.compat.helpers import models

    return getattr(models, name)
