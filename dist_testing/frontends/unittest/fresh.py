"""Loads the tests of a plain unittest run again, in a fresh interpreter."""

from __future__ import annotations

import runpy
import sys
import types
from typing import NoReturn

from dist_testing.frontends.unittest.messages import MAIN_MODULES, MainModule
from dist_testing.frontends.unittest.on_rank import UnittestRankContext
from dist_testing.launch.fresh import ThenBe
from dist_testing.process.messages import Loader

__all__ = ["load", "unittest_loader"]


def unittest_loader() -> Loader:
    """Return the loader for this process's tests: they are imported by name, except those of the main module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    module = MainModule(
        name=spec.name if spec is not None else None,
        path=getattr(main, "__file__", None) if spec is None else None,
    )
    return Loader(__name__, MAIN_MODULES.to_wire(module).decode())


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Import the main module; a rank imports the module of its class when it looks for it."""
    del test
    _import(MAIN_MODULES.from_wire(state))
    then(UnittestRankContext())


def _import(main: MainModule) -> None:
    """Import the main module as multiprocessing does: not under the name that makes it run its tests."""
    if main.name is not None and not main.name.endswith("__main__"):
        content = runpy.run_module(main.name, run_name="__mp_main__", alter_sys=True)
    elif main.path is not None:
        content = runpy.run_path(main.path, run_name="__mp_main__")
    else:
        # `python -m unittest`: its main module has no tests, and its import would start a run.
        return
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
