"""Reads a MODULE.bazel file, whose statements are also Python."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consumer_setup.library import SetupError, read_text

NAME = "MODULE.bazel"


@dataclass(frozen=True, slots=True)
class Call:
    """A call, such as `pip.parse(hub_name = "pypi")`."""

    name: str  # the function; a tag has the name of its extension, not that of a variable
    arguments: dict[str, Any]  # its arguments that are literals; "0" is the first without a name
    place: str  # its file and line


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """What a MODULE.bazel file says, with the files that it includes."""

    calls: list[Call] = field(default_factory=list)  # its calls, in order
    variables: set[str] = field(default_factory=set)  # the names that it assigns; those of included files are their own

    def dependency(self, name: str) -> Call | None:
        """Return the `bazel_dep` of a module."""
        return next((one for one in self.calls if one.name == "bazel_dep" and one.arguments.get("name") == name), None)

    def tag(self, name: str) -> Call | None:
        """Return the first call of a function."""
        return next((one for one in self.calls if one.name == name), None)

    def hubs(self) -> dict[str, str]:
        """Return the hubs of Python packages: name -> label of a lock file."""
        found: dict[str, str] = {}
        for call in self.calls:
            hub = call.arguments.get("hub_name") or (call.arguments.get("hub") if call.name.endswith(".lock") else None)
            lock = call.arguments.get("requirements_lock") or call.arguments.get("file") or ""
            # Changes of wheels, by which no package has a label.
            if hub and call.name != "pip.whl_mods":
                found.setdefault(str(hub), str(lock))
        return found


def read_module_file(folder: Path) -> ModuleFile | None:
    """Read the MODULE.bazel of a folder; None if it has none."""
    if not (folder / NAME).exists():
        return None
    calls: list[Call] = []
    return ModuleFile(calls, set(_read(folder, NAME, calls)))


def _read(folder: Path, name: str, calls: list[Call]) -> Iterable[str]:
    """Add the calls of a file and of those that it includes; return the names that the file itself assigns."""
    # Variable -> its extension, "" for any other value.
    variables: dict[str, str] = {}
    try:
        for node, _ in statements(read_text(folder / name)):
            arguments = _literals(node.value) if isinstance(node, ast.Assign | ast.Expr) else {}
            if isinstance(node, ast.Assign):
                variables |= dict.fromkeys(map(ast.unparse, node.targets), arguments.get("1", ""))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                owner, dot, tag = ast.unparse(node.value.func).partition(".")
                calls.append(Call(f"{variables.get(owner) or owner}{dot}{tag}", arguments, f"{name}:{node.lineno}"))
                if owner == "include":
                    _read(folder, str(arguments.get("0")).replace(":", "/").lstrip("/"), calls)
    except SyntaxError as error:
        raise SetupError(
            f"{name}:{error.lineno} cannot be understood: {error.msg}.",
            "Bazel would not load it, or it uses a form that this program does not know.",
            "Correct it, or add the lines of docs/consumers.md by hand.",
        ) from error
    return variables


def _literals(value: ast.expr) -> dict[str, Any]:
    if not isinstance(value, ast.Call):
        return {}
    named = [(str(number), one) for number, one in enumerate(value.args)]
    named += [(one.arg or "", one.value) for one in value.keywords]
    return {name: one.value for name, one in named if isinstance(one, ast.Constant)}


def statements(text: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement of a file, with its text: the comments and empty lines before it, too.

    Raises:
        SyntaxError: If it is no Python.
    """
    lines = text.splitlines(keepends=True)
    end = 0
    for node in ast.parse(text).body:
        assert node.end_lineno is not None
        yield node, "".join(lines[end : node.end_lineno])
        end = node.end_lineno
