"""Calls a function with a module right after the module's import, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Patch = Callable[[ModuleType], None]


def after_import(patches: dict[str, Patch]) -> None:
    """Call each function with the module of its name: now if it is loaded, else after its import."""
    for name in [name for name in patches if name in sys.modules]:
        patches.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(patches))


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and has their own loaders call a function at the end."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have for a module of the list, and None for other modules."""
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
