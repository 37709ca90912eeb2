"""Runs existing test files unchanged: torch's shared library of distributed tests, on this library's engine.

    from dist_testing.compat.common_distributed import MultiProcessTestCase, skip_if_lt_x_gpu

or, with unchanged imports, before the test files are imported::

    import dist_testing.compat

    dist_testing.compat.install()

`python -m dist_testing.compat test_file.py` and `pytest -p dist_testing.compat.pytest_install` do that, too.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
import warnings
from importlib import resources
from types import FunctionType

from dist_testing.core.engine.needs import import_torch
from dist_testing.core.launch.fresh import import_first

__all__ = ["TORCH_MODULE", "install", "is_installed"]

# torch's module, whose names this package provides.
TORCH_MODULE = "torch.testing._internal.common_distributed"

_OURS = "dist_testing.compat.common_distributed"


def is_installed() -> bool:
    """Return whether `import torch.testing._internal.common_distributed` gives this library's module."""
    module = sys.modules.get(TORCH_MODULE)
    return module is not None and module is sys.modules.get(_OURS)


def install() -> None:
    """Replace torch's module `common_distributed` by `dist_testing.compat.common_distributed` in this process.

    Every later import gets ours, also imports in torch's own helpers (`common_dtensor`, `common_fsdp`). Call it before
    test files are imported: a module keeps the names that it has imported from torch's module before, and a
    RuntimeWarning lists such modules. A second call does nothing.

    Raises:
        UsageError: If torch, or its `TestCase`, the base of the classes, cannot be imported.
    """
    if is_installed():
        return
    importlib.import_module("dist_testing.compat.before_torch")
    import_torch()
    warn_if_untested()
    ours = importlib.import_module(_OURS)
    theirs = sys.modules.get(TORCH_MODULE)
    if theirs is not None and (holders := _holders(theirs.__name__)):
        warnings.warn(
            f"{TORCH_MODULE} was in use before dist_testing.compat.install(): {', '.join(holders)} keep torch's.\n"
            "A module keeps the names that it has imported.\n"
            "Install first: at the top of the file, with -p dist_testing.compat.pytest_install, or with "
            "python -m dist_testing.compat.",
            RuntimeWarning,
            stacklevel=2,
        )
    import_first("dist_testing.compat.pytest_install")
    parent_name, _, name = TORCH_MODULE.rpartition(".")
    sys.modules[TORCH_MODULE] = ours
    # `from torch.testing._internal import common_distributed` reads the attribute.
    setattr(importlib.import_module(parent_name), name, ours)


def _holders(module_name: str) -> list[str]:
    """Return the names of modules that hold a class or function of that module."""
    found = set()
    for name, module in list(sys.modules.items()):
        # An entry may be None, or another object than a module.
        values = list(getattr(module, "__dict__", {}).values()) if name != module_name else ()
        # The type first: reading an attribute of other objects can have side effects, and torch's warn.
        if any(
            issubclass(type(value), type | FunctionType) and getattr(value, "__module__", None) == module_name
            for value in values
        ):
            found.add(name)
    return sorted(found)


@functools.cache
def warn_if_untested() -> None:
    """Warn once per process if torch is older or newer than the tested versions. Nothing is switched off."""
    import torch

    version = str(torch.__version__)
    if not is_tested(version):
        warnings.warn(
            f"torch {version}: dist_testing is tested with torch {' to '.join(_tested_range())}.\n"
            "Names and behaviour of torch's shared test library change from version to version.\n"
            "Use a version in the range, or check whether a failure comes from the version.",
            RuntimeWarning,
            stacklevel=3,
        )


def is_tested(version: str) -> bool:
    """Return whether a version, such as "2.13.0+cpu", is in the range."""
    oldest, newest = map(_number, _tested_range())
    return oldest <= _number(version) <= newest


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def _tested_range() -> tuple[str, str]:
    torch = json.loads(resources.files("dist_testing").joinpath("versions.json").read_text(encoding="utf-8"))["torch"]
    return torch["oldest"], torch["newest"]
