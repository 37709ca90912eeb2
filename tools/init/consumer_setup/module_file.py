"""Reads a MODULE.bazel file, without Bazel: its language is a subset of Python's in all that occurs there."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from consumer_setup.problem import SetupError

NAME = "MODULE.bazel"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A `bazel_dep`.

    Attributes:
        version: Its version; None if it has none, or it is an expression.
        repository: The name of its repository in labels.
        place: File and line.
    """

    version: str | None
    repository: str
    place: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of an extension, such as `pip.parse(...)`.

    Attributes:
        variable: The variable of the extension.
        name: Name of the tag.
        arguments: Its arguments as far as they are constants; None for any other.
        place: File and line.
    """

    variable: str
    name: str
    arguments: dict[str, object]
    place: str


@dataclass(slots=True)
class ModuleFile:
    """What a MODULE.bazel file, with the files that it includes, declares.

    Attributes:
        text: Text of the file itself.
        name: Name of the module; empty if it has none.
        dependencies: Module to its `bazel_dep`.
        overridden: Modules with an override.
        extensions: Variable to the file and the name of its extension.
        variables: Every assigned variable to its place.
        tags: All tags, in order.
        repositories: Name of a repository in labels to the variable that brings it (empty for rules and modules) and
            the extension's own name of it.
        places: Name of a repository in labels to its place.
    """

    text: str = ""
    name: str = ""
    dependencies: dict[str, Dependency] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)
    extensions: dict[str, tuple[str, str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    tags: list[Tag] = field(default_factory=list)
    repositories: dict[str, tuple[str, str]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def variable_of(self, label: str, extension: str) -> str:
        """Return the first variable of an extension; empty if there is none.

        Args:
            label: End of the label of its file, behind the repository's name.
            extension: Its name.
        """
        found = (name for name, (file, own) in self.extensions.items() if own == extension and file.endswith(label))
        return next(found, "")

    def tags_of(self, label: str, extension: str, tag: str) -> list[Tag]:
        """Return all tags of one kind, whatever the variable of the extension."""
        return [
            one
            for one in self.tags
            if one.name == tag
            and self.extensions.get(one.variable, ("", ""))[1] == extension
            and self.extensions[one.variable][0].endswith(label)
        ]

    def name_in_labels(self, variable: str, repository: str) -> str:
        """Return the name by which labels name an extension's repository; empty if it is not used."""
        return next((name for name, what in self.repositories.items() if what == (variable, repository)), "")


def read_module_file(folder: Path) -> ModuleFile | None:
    """Read the file of a folder; return None if there is none.

    Raises:
        SetupError: If it or an included file cannot be understood.
    """
    path = folder / NAME
    if not path.exists():
        return None
    found = ModuleFile(text=read_text(path))
    _read_into(found, folder, NAME, found.text, set())
    return found


def read_text(path: Path) -> str:
    """Return the text of a file, with its own line ends.

    Raises:
        SetupError: If it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 ({error.reason} at byte {error.start})"
    except OSError as error:
        reason = f"{error.strerror}"
    raise SetupError(
        f"'{path}' cannot be read: {reason}.",
        "It is damaged, it is not a file, or it belongs to another user.",
        "Repair or remove it, and run this command again.",
    )


def statements(text: str) -> list[tuple[ast.stmt, str]]:
    """Return the statements of a text, each with its own part of the text: its comments and the blank lines before it.

    Joined, the parts are the text up to its last statement.
    """
    lines = text.splitlines(keepends=True)
    found = []
    end = 0
    for statement in ast.parse(text).body:
        last = statement.end_lineno or statement.lineno
        found.append((statement, "".join(lines[end:last])))
        end = last
    return found


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """Return the calls in a statement, the outermost first."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def called(call: ast.Call) -> str:
    """Return the name of what is called: "bazel_dep", "pip.parse"; empty for anything else."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return f"{call.func.value.id}.{call.func.attr}"
    return ""


def _read_into(found: ModuleFile, folder: Path, name: str, text: str, seen: set[str]) -> None:
    seen.add(name)
    try:
        with warnings.catch_warnings():
            # Python warns of escapes in strings that Starlark allows.
            warnings.simplefilter("ignore")
            tree = ast.parse(text.replace("\r\n", "\n"))
    except (SyntaxError, ValueError) as error:
        place = f"{name}:{error.lineno}" if isinstance(error, SyntaxError) else name
        raise SetupError(
            f"{place} cannot be understood: {getattr(error, 'msg', error)}.",
            "It is no valid module file, or it is written in a way that this program does not know.",
            "If Bazel accepts it, add the lines of docs/consumers.md by hand.",
        ) from error
    constants: dict[str, object] = {}
    for statement in tree.body:
        place = f"{name}:{statement.lineno}"
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            variable = statement.targets[0].id
            found.variables.setdefault(variable, place)
            constants[variable] = _value(statement.value, constants)
            if isinstance(statement.value, ast.Call) and called(statement.value) == "use_extension":
                words = [str(_value(argument, constants)) for argument in statement.value.args[:2]]
                if len(words) == 2:
                    found.extensions.setdefault(variable, (words[0], words[1]))
        for call in calls(statement):
            _read_call(found, call, f"{name}:{call.lineno}", constants)
            label = _value(call.args[0], constants) if called(call) == "include" and call.args else None
            if isinstance(label, str) and (file := _included(label)) not in seen and (folder / file).is_file():
                _read_into(found, folder, file, read_text(folder / file), seen)


def _read_call(found: ModuleFile, call: ast.Call, place: str, constants: dict[str, object]) -> None:
    name = called(call)
    arguments = {one.arg: _value(one.value, constants) for one in call.keywords if one.arg}
    positional = [_value(one, constants) for one in call.args]
    own = arguments.get("name", positional[0] if positional else None)
    if name == "module":
        found.name = own if isinstance(own, str) else ""
    elif name == "bazel_dep" and isinstance(own, str):
        repository, version = arguments.get("repo_name") or own, arguments.get("version")
        found.dependencies[own] = Dependency(version if isinstance(version, str) else None, str(repository), place)
        _add_repository(found, str(repository), "", own, place)
    elif name.endswith("_override"):
        found.overridden.add(str(arguments.get("module_name", own)))
    elif name == "use_repo" and call.args and isinstance(call.args[0], ast.Name):
        variable = call.args[0].id
        for one in positional[1:]:
            _add_repository(found, str(one), variable, str(one), place)
        for key, value in arguments.items():
            _add_repository(found, key, variable, str(value), place)
    elif "." in name:
        variable, _, tag = name.partition(".")
        found.tags.append(Tag(variable, tag, dict(arguments), place))
    elif name in found.variables and isinstance(own, str):
        # A rule from `use_repo_rule`.
        _add_repository(found, own, "", own, place)


def _add_repository(found: ModuleFile, name: str, variable: str, own: str, place: str) -> None:
    found.repositories.setdefault(name, (variable, own))
    found.places.setdefault(name, place)


def _value(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _included(label: str) -> str:
    """Return the path of a label of this repository: `//pkg:file`, or `//:file`."""
    return label.removeprefix("@").replace(":", "/").lstrip("/")
