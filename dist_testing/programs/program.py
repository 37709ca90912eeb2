"""Describes a program, and checks its file before a rank starts."""

from __future__ import annotations

import ast
import json
import os
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, SPAWN, Isolation

# The name of the front end in a `CaseBody`.
FRONT_END = "program"
# Limit of a program that has none: only the target's time ends it, or the proof that it hangs. Seconds.
NO_LIMIT_S = 7 * 24 * 3600.0
# Statements that only define something. A file without any other statement runs nothing.
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)


@dataclass(frozen=True, slots=True)
class Program:
    """A program, by its absolute path, and its command line."""

    path: str
    name: str  # the file as the user wrote it, which is the program's `sys.argv[0]`; `arguments` has the others
    arguments: tuple[str, ...]
    search_path: tuple[str, ...]  # its `sys.path`
    expected_exits: Mapping[int, int] = field(default_factory=dict)  # as in `Case`, and so are the `settings`
    has_limit: bool = False  # whether the limit of the run is its own, too; else it has none
    settings: Mapping[str, Any] = field(default_factory=dict)

    def body(self, *, strict_calls: bool) -> CaseBody:
        """Return what the ranks run."""
        content = json.dumps([self.path, [self.name, *self.arguments], self.search_path])
        return CaseBody(FRONT_END, content, strict_calls=strict_calls)

    def command(self, case: Case, spec: Spec) -> str:
        """Return the command that runs the program as a case of it has run."""
        return shlex.join(
            [
                *("python", "-m", "dist_testing.run_program"),
                *(f"--backend={spec.backend.name}", f"--world-size={case.world_size}"),
                *([f"--nodes={nodes}"] if (nodes := case.settings.get("nodes", 1)) > 1 else []),
                *([f"--isolation={case.isolation}"] if case.isolation != FORK.name else []),
                *([f"--timeout={case.timeout_s:g}"] if self.has_limit else []),
                *(f"--fault={planned.after_s:g}={planned.call}" for planned in case.settings.get("faults", ())),
                *(f"--expected-exit={rank}={code}" for rank, code in self.expected_exits.items()),
                *(self.name, *self.arguments),
            ]
        )


def check_program(path: str) -> None:
    """Refuse a path that pytest would split, and a file that is unreadable, no Python, or runs nothing."""
    if found := [part for part in ("[", "::") if part in path]:
        raise UsageError(
            f"{path}: the path of the program contains {' and '.join(found)}.\n"
            "pytest runs the program, and takes what begins there for the name of a test.\n"
            "Rename the file or its folder; or make a link to the file in another folder, and name that."
        )
    try:
        source = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        # A null character in the path is a ValueError.
        why = error.strerror if isinstance(error, OSError) else str(error)
        folder = " It is a folder." if os.path.isdir(path) else ""
        raise UsageError(
            f"{path}: the program cannot be read: {why}.{folder}\n"
            "Every rank runs this file as its main program.\n"
            "Name a Python file that exists; options of the library come before it, and the program's after it."
        ) from error
    try:
        # The ranks print them.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source, path)
            compile(tree, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise UsageError(
            f"{path}{where}: the program is not Python: {what}.\n"
            "Every rank would end with this error, so none was started.\n"
            "Correct the file, or name another one: only Python files can be programs."
        ) from error
    if not any(map(_runs_something, tree.body)):
        raise UsageError(
            f"{path}: the program only imports and defines things, so it would pass without running anything.\n"
            "A program is a script; tests are run by pytest or unittest, and not by a program.\n"
            'Call its main function: `if __name__ == "__main__":`. Tests belong in `srcs`, or in a pytest command.'
        )


def check_isolation_of_program(name: str, isolation: Isolation) -> None:
    """Refuse ranks without a process of their own, for the program alone. `name` is the subject of the error text."""
    if isolation not in (FORK, SPAWN):
        raise UsageError(
            f'{name}: isolation "{isolation.name}" for a program.\n'
            "A program needs a process of its own, which ends with it; these ranks share one, or outlive the case.\n"
            f'Use isolation "{FORK.name}", which is the default, or "{SPAWN.name}".'
        )


def _runs_something(statement: ast.stmt) -> bool:
    if isinstance(statement, _DEFINITIONS):
        return False
    if isinstance(statement, ast.Expr):
        # A docstring.
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return any(isinstance(node, ast.Call) for node in ast.walk(statement))
    return True
