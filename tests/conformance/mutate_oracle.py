"""Changes the code of the oracle in one place at a time, and runs the tests that must notice it.

Run it by hand: `python -m tests.conformance.mutate_oracle [MODULE ...]`. It prints each change that no test notices,
and the score. docs/conformance.md has the last score and explains what is left.

A change is a mutation of the syntax tree: another operator, another number, a negated condition, another keyword.
Each runs in a forked process that has torch imported and loads the changed module in the place of the real one.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_PACKAGE = "dist_testing.conformance"
MODULES = ("on_rank.oracle", "on_rank.tensors", "reductions", "layouts", "groups", "judge")
_TESTS = ("test_oracle.py", "test_tensors.py", "test_judge.py")
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
    """Return the identities of nodes that have no effect: docstrings and annotations."""
    for node in ast.walk(tree):
        silent: list[Any] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.append(node)
        for name in ("annotation", "returns"):
            silent.append(getattr(node, name, None))
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


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name = name
        self._path = path
        self._tree = tree

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """Return the module's spec if it is the one."""
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(compile(self._tree, str(self._path), "exec"), module.__dict__)


def is_noticed(name: str, path: Path, tree: ast.Module) -> bool:
    """Return whether a test fails with the changed module, in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(_LIMIT_S)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            sys.meta_path.insert(0, _Loader(name, path, tree))
            folder = Path(__file__).parent
            tests = [str(folder / test) for test in _TESTS]
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def main(names: Sequence[str]) -> int:
    """Print the changes that no test notices, and the score. Returns 1 if the tests fail without a change."""
    import torch

    # Threads of torch do not survive a fork.
    torch.set_num_threads(1)
    noticed = total = 0
    for name in names or MODULES:
        path = Path(__file__).parents[2] / "dist_testing" / "conformance" / f"{name.replace('.', '/')}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        full_name = f"{_PACKAGE}.{name}"
        if is_noticed(full_name, path, tree):
            print("The tests fail without any change.")
            return 1
        for line, what, mutant in mutants_of(tree):
            total += 1
            if is_noticed(full_name, path, mutant):
                noticed += 1
            else:
                print(f"{name}:{line}: {what} lives", flush=True)
    print(f"{noticed} of {total} changes are noticed.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
