"""Changes a module of a project right after its import, before any other module takes names from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class ChangeOnImport(MetaPathFinder):
    """Finds modules as the other finders do, and calls a function with each one when its code has run."""

    def __init__(self, last_name: str, change: Callable[[ModuleType], object]) -> None:
        self._last_name = last_name
        self._change = change

    def install(self) -> None:
        """Watch imports from now on, and change the modules that are loaded already."""
        sys.meta_path.insert(0, self)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and module.__name__.endswith(self._last_name):
                self._change(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the next finder finds, with a loader that also changes the module."""
        if not fullname.endswith(self._last_name):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and not _is_installed(spec):
                    spec.loader = _Loader(spec.loader, self._change)
                return spec
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Return whether a module belongs to an installed package, and so to no suite."""
    return any(part in ("dist-packages", "site-packages") for part in Path(spec.origin or "").parts)


class _Loader(Loader):
    """Loads as another loader does, which answers all other questions, too."""

    def __init__(self, own: Any, change: Callable[[ModuleType], object]) -> None:
        self._own = own
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
