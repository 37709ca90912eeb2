"""Changes the code of a module in one place at a time, and runs the tests that must notice it.

Run it by hand: `python -m tests.support.mutate [MODULE[=TESTS,...] ...]`, from the root of the repository. A module is
named without `dist_testing`, and TESTS are files, such as `budget=tests/unit/test_budget.py`; a module of the table
below needs none. It prints each change that no test notices, and the score.

A change is a mutation of the syntax tree: another operator, another number, a negated condition, another keyword.
Each runs in a forked process, which has collected the tests and puts the changed code into the functions of the module.
"""

from __future__ import annotations

import ast
import copy
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

_PACKAGE = "dist_testing"
_ROOT = Path(__file__).parents[2]
# Module to the files of tests that must notice each change of it: modules that decide, with tests that take seconds.
TESTS: Mapping[str, Sequence[str]] = {
    "budget": ("tests/unit/test_budget.py",),
    "skips": ("tests/unit/test_skips.py",),
    "nodes.layout": ("tests/unit/test_nodes.py",),
    "bazel.sharding": ("tests/unit/test_sharding.py",),
}
# Limit of one run of the tests: a change can make a loop endless. Seconds.
_LIMIT_S = 60

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Gt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Return changed copies of a node, each with a description."""
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() | ast.UnaryOp() if type(node.op) in _OPERATORS:
            changed: Any = copy.deepcopy(node)
            changed.op = _OPERATORS[type(node.op)]()
            yield type(node.op).__name__, changed
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[number] = _OPERATORS[type(operator)]()
                yield type(operator).__name__, changed
        case ast.Constant(value=bool() as value):
            yield str(value), ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield str(value), ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if value:
            yield repr(value), ast.Constant(value + "!")
        case ast.If() | ast.IfExp():
            changed = copy.deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield "if", changed
        case ast.Return(value=ast.AST()):
            changed = copy.deepcopy(node)
            changed.value = ast.Constant(None)
            yield "return", changed
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield "statement", ast.Pass()
        case _:
            return


def mutants_of(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Return line, description and tree of each mutant of a module."""
    skipped = set(_texts_and_annotations(tree))
    count = sum(1 for _ in ast.walk(tree))
    for position in range(count):
        node = _nth(tree, position)
        if id(node) in skipped:
            continue
        for number, (what, _) in enumerate(changes_of(node)):
            mutant = copy.deepcopy(tree)
            place = _nth(mutant, position)
            replacement = list(changes_of(place))[number][1]
            mutant = ast.fix_missing_locations(_Replace(place, replacement).visit(mutant))
            yield getattr(node, "lineno", 0), what, mutant


def _nth(tree: ast.AST, position: int) -> ast.AST:
    return next(node for number, node in enumerate(ast.walk(tree)) if number == position)


def _texts_and_annotations(tree: ast.AST) -> Iterator[int]:
    """Return the identities of nodes that have no effect: docstrings, annotations and decorators."""
    for node in ast.walk(tree):
        silent: list[Any] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.append(node)
        for name in ("annotation", "returns"):
            silent.append(getattr(node, name, None))
        # Decorators are not applied again.
        silent += getattr(node, "decorator_list", ())
        for one in silent:
            if one is not None:
                yield from (id(part) for part in ast.walk(one))


class _Replace(ast.NodeTransformer):
    """Puts another node in the place of one."""

    def __init__(self, place: ast.AST, replacement: ast.AST) -> None:
        self._place = place
        self._replacement = replacement

    def visit(self, node: ast.AST) -> Any:
        """Return the node, or what replaces it."""
        if node is self._place:
            return ast.copy_location(self._replacement, node)
        return self.generic_visit(node)


class _Mutations:
    """A plugin of pytest that runs the collected tests once per change, each time in a forked process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module = importlib.import_module(name)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests with each change."""
        path = Path(str(self._module.__file__))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if self._is_noticed(session, tree):
            raise pytest.UsageError(f"{self._name}: the tests fail without any change")
        noticed = total = 0
        for line, what, mutant in mutants_of(tree):
            total += 1
            if self._is_noticed(session, mutant):
                noticed += 1
            else:
                print(f"{self._name}:{line}: {what} lives", flush=True)
        print(f"{self._name}: {noticed} of {total} changes are noticed.", flush=True)
        return True

    def _is_noticed(self, session: pytest.Session, tree: ast.Module) -> bool:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(_LIMIT_S)
                _change(self._module, tree)
                code = int(any(_fails(item) for item in session.items))
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1] != 0


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False))


def _change(module: ModuleType, tree: ast.Module) -> None:
    """Put the code of a tree into the functions of a module, and its values wherever the old ones are."""
    changed = ModuleType(module.__name__)
    sys.modules[module.__name__] = changed
    exec(compile(tree, str(module.__file__), "exec"), changed.__dict__)
    sys.modules[module.__name__] = module
    for name, old in list(vars(module).items()):
        new = changed.__dict__.get(name)
        if isinstance(old, FunctionType) and isinstance(new, FunctionType) and old.__module__ == module.__name__:
            old.__code__, old.__defaults__ = new.__code__, new.__defaults__
        elif isinstance(old, type) and old.__module__ == module.__name__:
            for key, method in vars(old).items():
                before, after = _function_of(method), _function_of(vars(new).get(key))
                if before is not None and after is not None and not key.startswith("__"):
                    before.__code__ = after.__code__
        elif not name.startswith("__") and not isinstance(old, ModuleType | type | FunctionType):
            for other in list(sys.modules.values()):
                if getattr(other, "__dict__", {}).get(name) is old:
                    setattr(other, name, new)


def _function_of(member: object) -> FunctionType | None:
    """Return the function of a member of a class: a method, a property, a static or a class method."""
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return function if isinstance(function, FunctionType) else None


def mutate(modules: Mapping[str, Sequence[str]]) -> int:
    """Print the changes that no test notices, and the score of each module.

    Args:
        modules: Full name of a module to the files of its tests.

    Returns:
        The exit code: 0 unless the tests could not run.
    """
    import torch

    # Threads of torch do not survive a fork.
    torch.set_num_threads(1)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name, tests in modules.items():
        plugin = _Mutations(name)
        code = pytest.main(["-q", "-s", "-p", "no:cacheprovider", "--no-summary", *tests], plugins=[plugin])
        # The tests run in other processes, so this one counts none.
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(code)
    return 0


def main(names: Sequence[str]) -> int:
    """Mutate the modules that the command line names, or all of the table; return the exit code."""
    modules = {}
    for word in names or TESTS:
        name, _, files = word.partition("=")
        tests = files.split(",") if files else TESTS.get(name, ())
        if not tests:
            sys.stderr.write(
                f"mutate: no tests are known for '{name}'.\n"
                f"The table has {', '.join(TESTS)}.\n"
                f"Name the files of its tests: {name}=tests/unit/test_x.py\n"
            )
            return 2
        modules[f"{_PACKAGE}.{name}"] = [str(_ROOT / test) for test in tests]
    return mutate(modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
