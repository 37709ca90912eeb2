"""Which test files a change affects: the import statements of the sources, followed transitively."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dist_testing.watch.files import is_third_party

_CONFTEST = "conftest.py"


def syntax_error(path: str) -> str:
    """Return `file:line: what is wrong` for a Python file that cannot be parsed; "" if it can, or does not exist."""
    try:
        ast.parse(Path(path).read_bytes(), path)
    except SyntaxError as error:
        text = (error.text or "").strip()
        return f"{path}:{error.lineno or 1}: {error.msg}{f': {text}' if text else ''}"
    except ValueError as error:
        return f"{path}:1: {error}"
    except OSError:
        return ""
    return ""


class Graph:
    """The imports between the files of a project.

    Attributes:
        leaves: Files whose own imports do not matter.
    """

    def __init__(self, leaves: Collection[str] = ()) -> None:
        self.leaves = frozenset(leaves)
        self._modules: Mapping[str, str] = {}
        self._modules_of: Mapping[str, str] = {}
        self._search_path: Sequence[str] = ()
        self._names: dict[str, frozenset[str]] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._files: dict[tuple[str, str], str | None] = {}

    def learn(self, modules: Mapping[str, str], search_path: Sequence[str]) -> None:
        """Take over what a run has imported.

        Args:
            modules: Name of a module to its file.
            search_path: Folders in which other modules are looked up.
        """
        folders = [folder for folder in search_path if not is_third_party(os.path.join(folder, ""))]
        if (modules, folders) != (self._modules, self._search_path):
            self._modules, self._modules_of = modules, {file: name for name, file in modules.items()}
            self._search_path = folders
            self._imports.clear()
            self._files.clear()

    def forget(self, paths: Iterable[str]) -> None:
        """Read these files again when they are needed next."""
        # A file that was created may come before another one.
        self._imports.clear()
        self._files.clear()
        for path in paths:
            self._names.pop(path, None)

    def reached_from(self, path: str) -> set[str]:
        """Return the file itself, and all files that it imports, directly or not."""
        reached: set[str] = set()
        to_come = [path]
        while to_come:
            current = to_come.pop()
            if current not in reached:
                reached.add(current)
                to_come += self._imports_of(current)
        return reached

    def affected(self, changed: Collection[str], test_files: Collection[str]) -> set[str]:
        """Return the test files that a change concerns.

        A file that no import leads to may be read in another way, so it concerns all test files.
        """
        reached = {test: self._reached_by_test(test) for test in test_files}
        known = set().union(*reached.values()) if reached else set()
        if any(path not in known and not _looks_like_tests(path) for path in changed):
            return set(test_files)
        return {test for test, files in reached.items() if not files.isdisjoint(changed)}

    def _reached_by_test(self, test: str) -> set[str]:
        reached = self.reached_from(test)
        for folder in Path(test).parents:
            conftest = str(folder / _CONFTEST)
            # One that was removed concerns the tests, too.
            reached |= self.reached_from(conftest) if os.path.exists(conftest) else {conftest}
        return reached

    def _imports_of(self, path: str) -> tuple[str, ...]:
        if path in self.leaves:
            return ()
        if path not in self._imports:
            if path not in self._names:
                self._names[path] = frozenset(_imported_names(path, self._modules_of.get(path, "")))
            found = {self._file_of(name, os.path.dirname(path)) for name in self._names[path]}
            self._imports[path] = tuple(file for file in found if file is not None)
        return self._imports[path]

    def _file_of(self, name: str, beside: str) -> str | None:
        """Return the file of a module; None if it is third-party, or no file."""
        if (found := self._modules.get(name)) is not None:
            return None if is_third_party(found) else found
        top = self._modules.get(name.partition(".")[0])
        if name.partition(".")[0] in sys.stdlib_module_names or (top is not None and is_third_party(top)):
            return None
        key = (name, beside)
        if key not in self._files:
            self._files[key] = self._looked_up(name.replace(".", os.sep), beside)
        return self._files[key]

    def _looked_up(self, relative: str, beside: str) -> str | None:
        for folder in (beside, *self._search_path):
            for path in (os.path.join(folder, f"{relative}.py"), os.path.join(folder, relative, "__init__.py")):
                if os.path.isfile(path):
                    return os.path.abspath(path)
        return None


def _looks_like_tests(path: str) -> bool:
    """Return whether pytest takes a file for tests, by its own names. A new one concerns no other."""
    name = os.path.basename(path)
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _imported_names(path: str, module: str) -> Iterator[str]:
    """Yield the modules that a source may import, and their packages; with `from a import b` both `a` and `a.b`."""
    for name in _names_in(path, module):
        yield name
        yield from (name[:end] for end, letter in enumerate(name) if letter == ".")


def _names_in(path: str, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
    except (OSError, SyntaxError, ValueError):
        return
    package = module if os.path.basename(path) == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".") if package else []
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytest_plugins" for target in node.targets
        ):
            yield from (
                one.value
                for one in ast.walk(node.value)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
