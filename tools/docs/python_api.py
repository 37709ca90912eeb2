"""Writes the page of the Python API from the modules: `python_api.py <page> <public module> ...`.

A module exports its `__all__`. For a class, the page shows the members that the library itself defines, without those
that begin with an underscore, and including those of the library's own base classes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import docstrings

HEADER = """\
# Python API

<!-- Generated from the sources. Write it anew: ./bazelw run //tools/docs:python -->
"""

LIBRARY = "dist_testing"

_STARS = {int(inspect.Parameter.VAR_POSITIONAL): "*", int(inspect.Parameter.VAR_KEYWORD): "**"}


def _annotation(annotation: Any) -> str:
    # The library's modules postpone evaluation, so the page shows annotations as they are written.
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _signature(function: Any, *, is_bound: bool) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    keyword_only = False
    for index, parameter in enumerate(signature.parameters.values()):
        if is_bound and index == 0:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        keyword_only |= parameter.kind is parameter.VAR_POSITIONAL
        text = _STARS.get(int(parameter.kind), "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            # Otherwise an object without a text form would be shown with its address.
            default = repr(parameter.default)
            text += f" = {'...' if ' at 0x' in default else default}"
        parts.append(text)
    result = signature.return_annotation
    returns = "" if result is signature.empty else f" -> {_annotation(result)}"
    return f"({', '.join(parts)}){returns}"


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Return public members by name, each from the class that Python would ask first."""
    seen: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == LIBRARY:
            for name, member in vars(base).items():
                seen.setdefault(name, member)
    yield from sorted((name, member) for name, member in seen.items() if not name.startswith("_"))


def _member_line(name: str, member: Any, owner: type) -> str | None:
    """Return an entry of the list of members; None for a plain value, which the docstring of the class describes."""
    inner, prefix, is_bound = member, "", True
    if isinstance(member, classmethod):
        inner, prefix = member.__func__, "classmethod "
    elif isinstance(member, staticmethod):
        inner, prefix, is_bound = member.__func__, "staticmethod ", False
    if isinstance(member, property | functools.cached_property):
        getter = member.fget if isinstance(member, property) else member.func
        annotation = _annotation(inspect.signature(getter).return_annotation) if getter else ""
        head = f"{name}: {annotation}"
    elif inspect.isfunction(inner):
        head = f"{prefix}{name}{_signature(inner, is_bound=is_bound)}"
    else:
        return None
    docstring = inspect.getdoc(getattr(owner, name)) or inspect.getdoc(member)
    if not docstring:
        raise docstrings.ApiError(f"{owner.__name__}.{name} has no docstring")
    first = docstrings.split(docstring)[0].split("\n\n")[0]
    return f"- `{head}`\n  {' '.join(first.split())}"


def _class_blocks(name: str, cls: type) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base is not object]
    if hasattr(cls, "_fields") or dataclasses.is_dataclass(cls):
        # Classes that users create instances of.
        yield f"```python\n{name}{_signature(cls, is_bound=False)}\n```"
    else:
        shown_bases = f"({', '.join(bases)})" if bases else ""
        yield f"```python\nclass {name}{shown_bases}\n```"
    yield docstrings.markdown(_docstring(name, cls))
    lines = [_member_line(member, value, cls) for member, value in _members(cls)]
    if shown := [line for line in lines if line is not None]:
        yield "Members:\n\n" + "\n".join(shown)


def _docstring(name: str, thing: Any) -> str:
    docstring = vars(thing).get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
    if not docstring:
        raise docstrings.ApiError(f"{name} has no docstring")
    return str(docstring)


def _blocks(module: ModuleType, name: str) -> Iterator[str]:
    thing = getattr(module, name)
    yield f"### {name}"
    if inspect.isclass(thing):
        yield from _class_blocks(name, thing)
    elif callable(thing):
        yield f"```python\n{name}{_signature(thing, is_bound=False)}\n```"
        yield docstrings.markdown(_docstring(name, thing))
    elif inspect.ismodule(thing):
        yield docstrings.markdown(_docstring(name, thing))
    else:
        yield f"A value of type `{type(thing).__name__.lstrip('_')}`."


def page(names: Sequence[str]) -> str:
    """Return the page of some public modules."""
    blocks = [HEADER.rstrip()]
    for name in names:
        module = importlib.import_module(name)
        blocks += [f"## `{name}`", docstrings.markdown(_docstring(name, module))]
        for exported in sorted(module.__all__, key=str.casefold):
            blocks += _blocks(module, exported)
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    cause = "Every name in `__all__` is public."
    sys.exit(docstrings.write_page("python_api.py", page, cause, "Write a docstring, or remove the name."))
