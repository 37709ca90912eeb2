"""Runs inside each Python process of an audited suite: notes what happens, and plants the one fault of the run.

`bootstrap/sitecustomize.py` loads this package under the name `_dist_testing_audit`. It needs only the standard
library, because the suite's Python may not have `dist_testing`. It writes only into the folder of the run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import cases, harnesses, leaving, ranks, record

# $DIST_TESTING_AUDIT, $DIST_TESTING_AUDIT_BOOTSTRAP (internal): in an audited suite: directories of its findings and of
# the hook.
_BOOTSTRAP = "DIST_TESTING_AUDIT_BOOTSTRAP"
_KEPT = ("DIST_TESTING_AUDIT", _BOOTSTRAP)


def start(folder: str) -> None:
    """Start the hook in this process, unless the folder of the run has no plan: then the audit has ended."""
    if not record.open_run(folder):
        return
    record.note("process")
    os.register_at_fork(after_in_child=_forked)
    # What to do with a module: now if it is loaded, else right after its import.
    patches: dict[str, Callable[[ModuleType], None]] = {
        "torch.distributed.distributed_c10d": ranks.watch,
        harnesses.TORCH_CLASSES: leaving.open_torch_classes,
        "torch.multiprocessing.spawn": leaving.open_torch_spawn,
        "_pytest.config": cases.join_pytest,
        "multiprocessing.pool": leaving.open_pool,
        "multiprocessing.process": lambda module: leaving.open_run(module.BaseProcess, "process"),
        "threading": lambda module: leaving.open_run(module.Thread, "thread"),
        "subprocess": keep_environment,
        "unittest.case": cases.watch,
    }
    if record.plan.harnesses:
        for name, watch in harnesses.watches():
            patches[name] = functools.partial(_both, patches.get(name), watch)
    for name in [name for name in patches if name in sys.modules]:
        patches.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(patches))


def _both(first: Callable[[ModuleType], None] | None, second: Callable[[ModuleType], None], module: ModuleType) -> None:
    if first is not None:
        first(module)
    second(module)


def _forked() -> None:
    # The functions that can be left would go on in a copy of the harness.
    leaving.doors.open = []
    record.note("process")


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and has their own loaders call a function at the end."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Taken out first, because the search below asks this finder again.
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)

        # On the loader itself, so that its class and all its other methods stay what tools expect.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def keep_environment(subprocess: ModuleType) -> None:
    """Have `subprocess.Popen` add the audit's variables to an environment of the harness's own that lacks them."""
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("env") is not None:
            kwargs["env"] = with_hook(kwargs["env"])
        start(self, *args, **kwargs)

    subprocess.Popen.__init__ = __init__


def with_hook(env: Any) -> Any:
    """Return an environment in which Python starts the hook; the same one if its names are bytes."""
    if not all(isinstance(name, str) for name in env):
        return env
    added = {**{name: os.environ[name] for name in _KEPT if name in os.environ}, **env}
    bootstrap, paths = added.get(_BOOTSTRAP), str(added.get("PYTHONPATH", ""))
    if bootstrap and bootstrap not in paths.split(os.pathsep):
        # The text itself stays: an empty entry in it is the working directory.
        added["PYTHONPATH"] = f"{bootstrap}{os.pathsep}{paths}" if paths else bootstrap
    return added
