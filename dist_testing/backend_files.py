"""Reads the declarations of backends in a .bzl file, for runs without Bazel.

A repository declares its backend once, by a call of `declare_backend` in a .bzl file that BUILD files load. Starlark
has the syntax of Python, so this module reads the call with `ast`. It executes nothing, so arguments are literals.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import SpecError, UsageError

_FUNCTION = "declare_backend"
# Labels of libraries; only builds need them.
_BUILD_ONLY = "deps"


def read_backend_file(path: str | os.PathLike[str]) -> list[Backend]:
    """Return the backends that a .bzl file declares, one for each call of `declare_backend`, in their order.

    A UsageError refuses a file that cannot be read or parsed, declares no backend, or declares one wrongly.
    """
    file = Path(path)
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}.\n"
            "The hook pytest_dist_backends, or --declared-in, names it as the declaration of a backend.\n"
            'Correct the path; Path(__file__).parent / "backend.bzl" is a file beside the conftest.py.'
        ) from error
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f"{file}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(file)
        raise UsageError(
            f"{line} does not parse: {error.msg if isinstance(error, SyntaxError) else error}.\n"
            f"Python reads the calls of {_FUNCTION} in this .bzl file, and its text must have Python's syntax.\n"
            "Correct it; keep declarations in a file of their own."
        ) from error
    names = set(_names(tree))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    calls.sort(key=lambda call: call.lineno)
    if not calls:
        raise UsageError(
            f"{file} declares no backend.\n"
            f"It has no call of {_FUNCTION} from a load() of @dist_testing//dist_testing:backends.bzl.\n"
            "Name the .bzl file that has the declaration."
        )
    return [_backend(f"{file}:{call.lineno}", call) for call in calls]


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the function in the file: `load()` may rename it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            loaded = [(None, argument) for argument in node.args[1:]] + [(kw.arg, kw.value) for kw in node.keywords]
            for name, value in loaded:
                if isinstance(value, ast.Constant) and value.value == _FUNCTION:
                    yield name or _FUNCTION


def _backend(place: str, call: ast.Call) -> Backend:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise _wrong(place, "has positional arguments or **arguments", "Write every argument as name = value.")
    known = {known.name: known for known in fields(Backend)}
    entry: dict[str, Any] = {}
    for keyword in call.keywords:
        name = str(keyword.arg)
        if name not in known and name != _BUILD_ONLY:
            way_out = did_you_mean(name, known, f"It takes {', '.join([*known, _BUILD_ONLY])}.")
            raise _wrong(place, f"has no argument {name}", way_out)
        if name in known:
            entry[name] = _literal(place, name, keyword.value)
    for name, declared in known.items():
        if name not in entry and declared.default is MISSING and declared.default_factory is MISSING:
            raise _wrong(place, f"lacks the argument {name}", f"Add {name} = ...; docs/backends.md explains it.")
    # As in JSON, the features are a list.
    defaults = {**asdict(Backend("", "", "")), "features": []}
    try:
        return Backend.from_json({**defaults, **entry})
    except SpecError as error:
        raise UsageError(
            f"{place}: {error}.\n"
            f"{_FUNCTION} refuses the same value when Bazel loads the file.\n"
            "Correct the declaration; docs/backends.md explains each argument."
        ) from error


def _literal(place: str, name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise _wrong(
            place,
            f"has {name} = {ast.unparse(value)}, which is not a literal",
            "Write the value itself: a string, a number, True or False, a list or a dict of these.",
        ) from error


def _wrong(place: str, what: str, way_out: str) -> UsageError:
    return UsageError(
        f"{place}: the call of {_FUNCTION} {what}.\nPython reads this call without executing the file.\n{way_out}"
    )
