"""torch's shared library of distributed tests, by name: existing test files run unchanged.

    from dist_testing.compat.common_distributed import MultiProcessTestCase, skip_if_lt_x_gpu

or, without touching an import, before the test files are imported::

    import dist_testing.compat

    dist_testing.compat.install()

or `python -m dist_testing.compat test_file.py`, or `pytest -p dist_testing.compat.pytest_install`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import FunctionType

from dist_testing.compat.versions import warn_if_untested
from dist_testing.launch.fresh import import_first

__all__ = ["TORCH_MODULE", "install", "is_installed"]

# What the names are torch's names of.
TORCH_MODULE = "torch.testing._internal.common_distributed"

_OURS = "dist_testing.compat.common_distributed"


def is_installed() -> bool:
    """Whether `import torch.testing._internal.common_distributed` gives this library's module."""
    module = sys.modules.get(TORCH_MODULE)
    return module is not None and module is sys.modules.get(_OURS)


def install() -> None:
    """Put `dist_testing.compat.common_distributed` in the place of torch's module of that name, for this process.

    Every later import gets ours, also those in torch's own helpers (`common_dtensor`, `common_fsdp`). Call it before
    test files are imported: what a module has taken from torch's by name before, it keeps, and a warning names it.
    A second call does nothing.

    Raises:
        UsageError: If torch's `TestCase`, which is the base of the classes, cannot be imported.
    """
    if is_installed():
        return
    warn_if_untested()
    ours = importlib.import_module(_OURS)
    theirs = sys.modules.get(TORCH_MODULE)
    if theirs is not None and (holders := _holders(theirs.__name__)):
        warnings.warn(
            f"{TORCH_MODULE} was in use before dist_testing.compat.install(): {', '.join(holders)} keep torch's.\n"
            "A module keeps what it has imported by name.\n"
            "Install first: at the top of the file, with -p dist_testing.compat.pytest_install, or with "
            "python -m dist_testing.compat.",
            RuntimeWarning,
            stacklevel=2,
        )
    import_first("dist_testing.compat.pytest_install")
    parent_name, _, name = TORCH_MODULE.rpartition(".")
    sys.modules[TORCH_MODULE] = ours
    # `from torch.testing._internal import common_distributed` takes the attribute.
    setattr(importlib.import_module(parent_name), name, ours)


def _holders(module_name: str) -> list[str]:
    """Modules that have a class or function of that module among their names."""
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if name != module_name
        # An entry may be None, or no module at all.
        and any(_is_of(module_name, value) for value in list(getattr(module, "__dict__", {}).values()))
    )


def _is_of(module_name: str, value: object) -> bool:
    # By the type: other objects may do anything when they are asked for an attribute, torch's warn.
    is_class_or_function = issubclass(type(value), type | FunctionType)
    return is_class_or_function and getattr(value, "__module__", None) == module_name
