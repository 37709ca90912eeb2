"""Starts the audit's hook in each Python process of an audited suite, then runs the environment's own `sitecustomize`.

It needs only the standard library, and must never make a process fail that would start without it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _start_hook(here: str) -> None:
    folder = os.path.join(os.path.dirname(here), "hook")
    name = "_dist_testing_audit"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    module.start(os.environ["DIST_TESTING_AUDIT"])


def _run_shadowed(paths: list[str]) -> None:
    """Run the `sitecustomize` that this one hides, if there is one. Its errors are the environment's own."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
# The suite must not see this folder: only the environment variable has to stay, for the processes that it starts.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
if "DIST_TESTING_AUDIT" in os.environ:
    _start_hook(_HERE)
_run_shadowed(sys.path)
