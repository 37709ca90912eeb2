"""Distributed PyTorch tests: every rank accounted for, one verdict, nothing left behind.

Two front ends run on one engine: `@pytest.mark.distributed` with the `world` fixture, and `MultiProcessTestCase` for
unittest. `__all__` lists the public names. Each is imported at its first use: every pytest session imports this package
for the plugin, if the package is installed, and most sessions use few names or none.

PYTEST_DONT_REWRITE: a test file that runs as a program imports this module before pytest, which would warn of that.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

# A module has the same name: its later import would replace a function that is not loaded here.
from dist_testing.run_tests import run_tests as run_tests

if TYPE_CHECKING:
    from dist_testing.compat.device import DistributedTestBase as DistributedTestBase
    from dist_testing.compat.helpers.models import SaveForwardInputsModel as SaveForwardInputsModel
    from dist_testing.compat.helpers.models import SaveForwardInputsModule as SaveForwardInputsModule
    from dist_testing.compat.names import *  # noqa: F403
    from dist_testing.compat.requirements.accelerators import skip_if_small_worldsize as skip_if_small_worldsize
    from dist_testing.core.unittest.continuous import MultiProcContinousTest as MultiProcContinousTest
    from dist_testing.core.unittest.continuous import MultiProcContinuousTest as MultiProcContinuousTest
    from dist_testing.core.unittest.exits import expected_exits as expected_exits
    from dist_testing.core.unittest.process import MultiProcessTestCase as MultiProcessTestCase
    from dist_testing.functions.run import RunFailedError as RunFailedError
    from dist_testing.functions.run import run as run
    from dist_testing.functions.start_processes import start_processes as start_processes
    from dist_testing.nodes.planned import planned_faults as planned_faults
    from dist_testing.threaded.thread_case import MultiThreadedTestCase as MultiThreadedTestCase
    from dist_testing.whole_world import World as World

    __all__: list[str]

# The only place of the version: pip's metadata take it from here, and a test compares MODULE.bazel with it.
__version__ = "0.2.0"

# Module to its names. All other public names are torch's, and `compat.names` has them.
_NAMES = {
    "compat.device": "DistributedTestBase",
    "compat.helpers.models": "SaveForwardInputsModel SaveForwardInputsModule",
    "compat.requirements.accelerators": "skip_if_small_worldsize",
    "core.ground.world": "World",
    "core.unittest.continuous": "MultiProcContinousTest MultiProcContinuousTest",
    "core.unittest.exits": "expected_exits",
    "core.unittest.process": "MultiProcessTestCase",
    "functions.run": "RunFailedError run",
    "functions.start_processes": "start_processes",
    "nodes.planned": "planned_faults",
    "threaded.thread_case": "MultiThreadedTestCase",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_OTHERS = "compat.names"


def _load(name: str) -> Any:
    if name == "__all__":
        there = {name for name, home in _HOMES.items() if _is_there(home)}
        return sorted({*there, "run_tests", *getattr(_module(_OTHERS), "__all__", ())})
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, _OTHERS)
    if (module := _module(home)) is None:
        raise AttributeError(
            f"dist_testing.{name}: this installation has no such name.\n"
            f"It would be in {__name__}.{home}; the folder of that add-on, or of one that it needs, is missing.\n"
            "Correct the name, or install dist_testing with the add-on that has it."
        )
    if not hasattr(module, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(module, name)
    return found


def _is_there(home: str) -> bool:
    """Return whether a module of the package exists, without its import: some import torch, which takes a second."""
    try:
        return importlib.util.find_spec(f"{__name__}.{home}") is not None
    except ModuleNotFoundError:
        return False


def _module(home: str) -> Any:
    """Return a module of the package; None if the folder of an add-on that it needs has been deleted."""
    try:
        return importlib.import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(f"{__name__}."):
            raise
        return None


def __dir__() -> list[str]:
    """Return the public names, too, although they are not loaded yet."""
    return sorted({*globals(), *_load("__all__")})


if not TYPE_CHECKING:
    # A type checker would take every wrong name for one that this function knows.
    __getattr__ = _load
