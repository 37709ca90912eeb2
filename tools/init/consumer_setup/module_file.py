"""Reads a MODULE.bazel file, whose statements are also Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consumer_setup.library import SetupError, read_text

NAME = "MODULE.bazel"


@dataclass(frozen=True, slots=True)
class Call:
    """A call, such as `pip.parse(hub_name = "pypi")`."""

    name: str  # the function, as it is written
    arguments: dict[str, Any]  # its named arguments that are literals
    line: int  # number of its first line


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """What a MODULE.bazel file says."""

    calls: list[Call] = field(default_factory=list)  # its calls, in order
    variables: set[str] = field(default_factory=set)  # the names that it assigns

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
            if hub:
                found.setdefault(str(hub), str(lock))
        return found


def read_module_file(folder: Path) -> ModuleFile | None:
    """Read the MODULE.bazel of a folder; None if it has none."""
    if not (folder / NAME).exists():
        return None
    text = read_text(folder / NAME)
    module = ModuleFile()
    try:
        for node, _ in statements(text):
            if isinstance(node, ast.Assign):
                module.variables.update(ast.unparse(target) for target in node.targets)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                arguments = {}
                for keyword in node.value.keywords:
                    if keyword.arg and isinstance(keyword.value, ast.Constant):
                        arguments[keyword.arg] = keyword.value.value
                module.calls.append(Call(ast.unparse(node.value.func), arguments, node.lineno))
    except SyntaxError as error:
        raise SetupError(
            f"{NAME}:{error.lineno} cannot be understood: {error.msg}.",
            "Bazel would not load it, or it uses a form that this program does not know.",
            "Correct it, or add the lines of docs/consumers.md by hand.",
        ) from error
    return module


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
