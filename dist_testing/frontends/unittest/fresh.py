"""Loads the tests of a plain unittest run again, in a fresh interpreter."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Mapping
from typing import Any, NoReturn

from dist_testing.frontends.unittest.on_rank import UnittestRankContext
from dist_testing.launch.fresh import Loader, ThenBe

__all__ = ["load", "unittest_loader"]


def unittest_loader() -> Loader:
    """Return the loader for this process's tests: they are imported by name, except those of the main module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return Loader(
        __name__,
        {
            "main_name": spec.name if spec is not None else None,
            "main_path": getattr(main, "__file__", None) if spec is None else None,
        },
    )


def load(state: Mapping[str, Any], then: ThenBe, test: str | None) -> NoReturn:
    """Import the main module; a rank imports the module of its class later, when it looks for the class."""
    del test
    _import_main(state["main_path"], state["main_name"])
    then(UnittestRankContext())


def _import_main(path: str | None, name: str | None) -> None:
    """Import the main module under the name `__mp_main__`, as multiprocessing does, so that it runs no tests."""
    if name is not None and not name.endswith("__main__"):
        content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
    elif path is not None:
        content = runpy.run_path(path, run_name="__mp_main__")
    else:
        # `python -m unittest`: its main module has no tests, and its import would start a run.
        return
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
