"""The public names of `dist_testing`. `dist_testing/__init__.py` imports this module when one of them is first used.

Names of an add-on or a program whose folder has been deleted are left out; the others load.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dist_testing.core.unittest.classes import (
    MultiProcContinousTest,
    MultiProcContinuousTest,
    MultiProcessTestCase,
)
from dist_testing.core.unittest.exits import expected_exits
from dist_testing.run_tests import run_tests

if TYPE_CHECKING:
    from dist_testing.compat.helpers.models import SaveForwardInputsModel, SaveForwardInputsModule
    from dist_testing.nodes.world import World
else:
    from dist_testing.core.ground.world import World

# They derive from torch's classes, and the import of torch takes a second.
_MODELS = ("SaveForwardInputsModel", "SaveForwardInputsModule")
# Modules that are missing.
_missing: list[str] = []


@contextlib.contextmanager
def _if_present() -> Iterator[None]:
    """Import names of one add-on in the block, if its folder is there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dist_testing."):
            raise
        _missing.append(str(error.name))


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

with _if_present():
    from dist_testing.functions.run import run
    from dist_testing.functions.start_processes import start_processes
    from dist_testing.functions.world import RunFailedError
with _if_present():
    from dist_testing.nodes.planned import planned_faults
with _if_present():
    from dist_testing.threaded.thread_case import MultiThreadedTestCase
with _if_present():
    from dist_testing.compat import names as _names
    from dist_testing.compat.device import DistributedTestBase
    from dist_testing.compat.names import *  # noqa: F403
    from dist_testing.compat.requirements.worlds import skip_if_small_worldsize

    __all__ += _names.__all__

if not TYPE_CHECKING and _missing:
    __all__ = [name for name in __all__ if name in globals()]


def __getattr__(name: str) -> Any:
    """Load a name that needs the import of torch, at its first use.

    Raises:
        AttributeError: If there is no such name.
    """
    if name in _MODELS and "_names" in globals():
        from dist_testing.compat.helpers import models

        return getattr(models, name)
    if not _missing:
        raise AttributeError(f"module 'dist_testing' has no attribute {name!r}")
    raise AttributeError(
        f"dist_testing.{name}: this installation has no such name.\n"
        f"Add-ons are missing from it: {', '.join(_missing)}.\n"
        "Correct the name, or install dist_testing with the add-on that has it."
    )
