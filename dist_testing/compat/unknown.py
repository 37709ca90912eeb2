"""Names of torch's module that ours does not define: those that it imports, and stand-ins for newer ones."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import torch

from dist_testing.core.ground.errors import UsageError

# The name under which torch's own module is loaded beside ours.
_ALIAS = "dist_testing.compat._torchs_own"

# Where a name is imported from: the module, and the name in it, or "" for the module itself. None: it is not imported.
_Source: TypeAlias = "tuple[str, str] | None"


def name_of_torch(name: str) -> Any:
    """Return the object of a name that torch's module imports; for another name of it, a stand-in for a UsageError."""
    if name.startswith("__") or name not in _torchs_names():
        raise AttributeError(f"module 'dist_testing.compat.common_distributed' has no attribute {name!r}")
    source = _torchs_names()[name]
    if source is not None:
        module_name, attribute = source
        # A name of an optional package, such as torchcomms, is also unknown without the package.
        with contextlib.suppress(ImportError):
            module = importlib.import_module(module_name)
            return getattr(module, attribute) if attribute else module
    return Unknown(name)


def imported_names() -> list[str]:
    """Return the names that torch's module imports, from the standard library and from other modules of torch."""
    return [name for name, source in _torchs_names().items() if source is not None]


class Unknown:
    """An object that raises a UsageError at every use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _fail(self, *args: Any, **kwargs: Any) -> NoReturn:
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
    return Path(importlib.import_module("torch.testing._internal").__path__[0], "common_distributed.py")


@functools.cache
def _torchs_names() -> dict[str, _Source]:
    """Return the names that torch's module binds, from its source: its import takes a second."""
    return _bound(ast.parse(_torchs_file().read_text(encoding="utf-8")).body)


def _bound(statements: list[ast.stmt]) -> dict[str, _Source]:
    names: dict[str, _Source] = {}
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = None
            case ast.Assign(targets=targets):
                names |= {target.id: None for target in targets if isinstance(target, ast.Name)}
            case ast.Import(names=aliases):
                for alias in aliases:
                    first = alias.name.partition(".")[0]
                    names[alias.asname or first] = (alias.name if alias.asname else first, "")
            case ast.ImportFrom(module=str(module), names=aliases):
                names |= {alias.asname or alias.name: (module, alias.name) for alias in aliases}
            case ast.If(body=body, orelse=orelse):
                names |= _bound(orelse) | _bound(body)
            case ast.Try(body=body, handlers=handlers):
                for handler in handlers:
                    names |= _bound(handler.body)
                names |= _bound(body)
    return names
