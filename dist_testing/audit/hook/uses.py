"""Finds the harnesses that a collected test reaches, from the names in its code and in the suite's code that it names.

The suite's code has "test" in its path, counted from the folder above pytest's root folder, or from that of packages.
Other code counts where the suite's code names it, as a project's own launcher. None of this code runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import sys
from collections import ChainMap
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from . import harnesses

_NAMED = {entry: harness.name for harness in harnesses.HARNESSES for entry in harness.reached}
# What runs although no code names it.
_UNNAMED = {"__call__", "__enter__", "__init__", "setUp", "setUpClass", "setup_class", "setup_method"}
# Packages that have harnesses, or "test" in their paths, and are no suite. Suites have packages of the name "test".
_LIBRARIES = (sys.stdlib_module_names - {"test"}) | {
    "_dist_testing_audit",
    "_pytest",
    "dist_testing",
    "pytest",
    "torch",
}
_STARTS = re.compile(r"subprocess|Popen|check_call|check_output|system")
# More than a command has.
_PARTS = 100
_LAUNCHER = "torchrun|distributed|accelerate"

# A file and a line.
Site = tuple[str, int]


class _Read(NamedTuple):
    uses: dict[str, Site]  # the harnesses
    functions: list[tuple[FunctionType, type | None]]  # other functions, each with the class in which it was found
    launcher: Site | None  # where a command is that starts ranks
    starts: bool  # whether it starts commands


def uses_of(item: Any, root: str) -> dict[str, Site]:
    """Return the harnesses of a test, each with where it is named; `root` is pytest's root folder."""
    owner: type | None = getattr(item, "cls", None)
    fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    bodies = [getattr(item, "obj", None), *(definitions[-1].func for definitions in fixtures.values())]
    # Classes of unittest may have replaced the method on their object.
    bodies += [member for _, member, _ in _members(owner, {getattr(item, "originalname", ""), *_UNNAMED})]
    pending = [(function, owner) for body in bodies if (function := _function(body)) is not None]
    found = {} if owner is None else dict(_bases(owner))
    if any(mark.kwargs.get("standalone") for mark in item.iter_markers("skipif")):
        found[harnesses.STANDALONE] = (str(item.path), item.location[1] + 1)
    seen, launcher, starts = set(), None, False
    while pending:
        one = pending.pop()
        if one in seen or str(one[0].__globals__.get("__name__")).partition(".")[0] in _LIBRARIES:
            continue
        seen.add(one)
        read = _read(*one)
        for name, site in read.uses.items():
            found.setdefault(name, site)
        if _is_of_suite(one[0].__code__.co_filename, root):
            pending += read.functions
            launcher, starts = launcher or read.launcher, starts or read.starts
    if launcher is not None and starts:
        found[harnesses.LAUNCHED] = launcher
    return found


@functools.cache
def _bases(owner: type) -> dict[str, Site]:
    names = list(filter(None, map(_harness, owner.__mro__)))
    line = 1
    # Some classes are made by a function.
    with contextlib.suppress(OSError):
        line = inspect.getsourcelines(owner)[1] if names else line
    return dict.fromkeys(names, (str(getattr(sys.modules.get(owner.__module__), "__file__", "")), line))


@functools.cache
def _read(function: FunctionType, owner: type | None) -> _Read:
    code = function.__code__
    codes = list(_codes(code))
    names = {name for inner in codes for name in inner.co_names}
    texts = [text for inner in codes for text in _flat(inner.co_consts) if text != function.__doc__]
    # Modules by their whole names: imports inside the function.
    scope = ChainMap(_enclosed(function), function.__globals__, sys.modules)
    values: list[tuple[str, Any, type | None]]
    values = [(name, scope[name], None) for name in (*names, *code.co_freevars) if name in scope]
    values.append(("", owner, None))
    uses: dict[str, Site] = {}
    # A wrapper has the name of what it wraps; its code has that of the decorator.
    if decorator := _NAMED.get(f"*:{code.co_qualname.partition('.<locals>')[0]}"):
        uses[decorator] = _site(function, "def")
    functions: list[tuple[FunctionType, type | None]] = []
    seen: set[int] = set()
    while values:
        name, value, holder = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        texts += _flat(value)
        called = _function(value)
        for one in value.__mro__ if isinstance(value, type) else (called,):
            if harness := _harness(one):
                uses.setdefault(harness, _site(function, rf"\b{name}\b"))
        if called is not None:
            functions.append((called, holder))
            # The functions of multiprocessing are methods of a context, which has the classes of processes.
            value = getattr(value, "__self__", None)
        values += _members(value, names | _UNNAMED)
    launcher = _site(function, _LAUNCHER) if harnesses.is_launcher(" ".join(texts)) else None
    return _Read(uses, functions, launcher, any(map(_STARTS.search, names)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _flat(value: object) -> list[str]:
    """Return the texts in a constant, or in the first parts of a long one."""
    if isinstance(value, tuple | list):
        return [text for inner in itertools.islice(value, _PARTS) for text in _flat(inner)]
    return [value] if isinstance(value, str) else []


def _enclosed(function: FunctionType) -> dict[str, Any]:
    """Return the variables of the functions around a function."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A variable may not be set yet.
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _function(value: object) -> FunctionType | None:
    """Return the Python function that a call of an object runs."""
    for name in ("func", "fget", "__func__"):
        if isinstance(value, functools.partial | property | staticmethod | classmethod | MethodType):
            value = getattr(value, name, value)
    return value if isinstance(value, FunctionType) else None


def _harness(value: type | FunctionType | None) -> str | None:
    if value is None:
        return None
    return _NAMED.get(f"{value.__module__}:{value.__qualname__}") or _NAMED.get(f"*:{value.__qualname__}")


def _members(value: object, names: set[str]) -> Iterator[tuple[str, Any, type | None]]:
    """Yield what a module, a class or the class of an object has by these names, without a call of its code."""
    if isinstance(value, ModuleType):
        spaces, holder = [vars(value)], None
    else:
        holder = value if isinstance(value, type) else type(value)
        spaces = [dict(vars(base)) for base in holder.__mro__ if base.__module__ != "builtins"]
    for space in spaces:
        for name in names & space.keys():
            yield name, space[name], holder


def _site(function: FunctionType, pattern: str) -> Site:
    """Return the first line of a function that has a pattern; its first line if none has."""
    code = function.__code__
    with contextlib.suppress(OSError):
        for number, line in enumerate(*inspect.getsourcelines(code)):
            if re.search(pattern, line):
                return code.co_filename, number
    return code.co_filename, code.co_firstlineno


def _is_of_suite(file: str, root: str) -> bool:
    inner = file.removeprefix(os.path.join(os.path.dirname(root), ""))
    return "test" in inner.rpartition("-packages" + os.sep)[2]
