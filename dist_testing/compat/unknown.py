"""Stand-ins for names of torch's module that this library does not have, usually newer ones."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dist_testing.errors import UsageError

__all__ = ["is_unknown", "torchs_own", "unknown_name"]

# The name under which torch's own module is loaded beside ours.
_ALIAS = "dist_testing.compat._torchs_own"


def unknown_name(name: str) -> Any:
    """Return a stand-in for a name that only torch's module has; every use of it raises a UsageError.

    Raises:
        AttributeError: If torch's module does not have the name either.
    """
    if name.startswith("__") or name not in _torchs_names():
        raise AttributeError(f"module 'dist_testing.compat.common_distributed' has no attribute {name!r}")
    return _Unknown(name)


class _Unknown:
    """An object that raises a UsageError at every use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        import torch

        raise UsageError(
            f"{self._name}: torch {torch.__version__} has this name in common_distributed; dist_testing does not.\n"
            "The name is newer than this version of dist_testing.\n"
            f"Use torch's own, dist_testing.compat.unknown.torchs_own().{self._name}, with torch's own classes."
        )

    __call__ = __mro_entries__ = __bool__ = __iter__ = __getitem__ = _fail

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            # Inspection reads such names, and works without them.
            raise AttributeError(attribute)
        self._fail()


def is_unknown(value: object) -> bool:
    """Return whether a value is a stand-in."""
    return type(value) is _Unknown


def torchs_own() -> ModuleType:
    """Return torch's own module with its own classes, also if ours is installed. The first call takes a second."""
    if (module := sys.modules.get(_ALIAS)) is None:
        spec = importlib.util.spec_from_file_location(_ALIAS, _torchs_file())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_ALIAS] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[_ALIAS]
            raise
    return module


def _torchs_file() -> Path:
    spec: ModuleSpec | None = importlib.util.find_spec("torch.testing._internal")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)), "common_distributed.py")


@functools.cache
def _torchs_names() -> frozenset[str]:
    """Return the names that torch's module defines or imports, from its source: its import takes a second."""
    return frozenset(_bound(ast.parse(_torchs_file().read_text(encoding="utf-8")).body))


def _bound(statements: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.If(body=body, orelse=orelse):
                names |= _bound(body) | _bound(orelse)
            case ast.Try(body=body, handlers=handlers):
                names |= _bound(body)
                for handler in handlers:
                    names |= _bound(handler.body)
    return names
