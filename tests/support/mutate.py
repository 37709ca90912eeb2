"""Changes the code of a module in one place at a time, and runs the tests that must notice it.

Run it by hand, from the root of the repository:

    python -m tests.support.mutate [OPTIONS] [AREA | MODULE[=TESTS,...] ...]

An area or a module of the table in `tests/support/mutated.py` needs no more than its name, such as `verdict` or
`core.ground.budget`; any other module is named without `dist_testing`, with the files of its tests:
`core.ground.case=tests/unit/test_outcomes.py`. It prints each change that no test notices, and the score of each
module.

    --sample=N   N changes of each module, chosen at random, in place of all
    --seed=N     the seed of that choice: 0 if it is not given
    --again=FILE only the changes that live in FILE, which has the output of an earlier run: after new tests
    --texts      also changes messages to people, which are texts with a space: their words decide nothing

A change is a mutation of the syntax tree: another operator, another number, a negated condition, another keyword, a
statement left out. Each runs in a forked process, which imports the changed module and collects the tests anew. So
changes of constants, classes and `__init__` count, too. Tests that start interpreters run these with the old code.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.support.mutated import AREAS

_PACKAGE = "dist_testing"
_ROOT = Path(__file__).parents[2]
# Imported once, in the process that the others are forked from. None of them imports the library.
_PRELOADED = ("torch.distributed", "torch.testing._internal.common_distributed", "hypothesis", "expecttest")
# Limits of one run of the tests, because a change can make a loop or a wait endless: of its CPU time, which does not
# depend on what else the machine does, and of its time. Seconds.
_CPU_LIMIT_S = 60
_LIMIT_S = 300

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
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
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def _with(node: ast.AST, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    return type(node)(**{**vars(node), **fields})


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Return changed copies of a node, each with a description."""
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() | ast.UnaryOp() if type(node.op) in _OPERATORS:
            yield type(node.op).__name__, _with(node, op=_OPERATORS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                others = [*node.ops[:number], _OPERATORS[type(operator)](), *node.ops[number + 1 :]]
                yield type(operator).__name__, _with(node, ops=others)
        case ast.Constant(value=bool() as value):
            yield str(value), ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield str(value), ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if value:
            # Names of encodings may have further signs of punctuation, so that one sign would not do.
            yield repr(value), ast.Constant(value + "x!")
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield name, _with(node, func=ast.Name(_FUNCTIONS[name], ast.Load()))
        case ast.If() | ast.IfExp() | ast.While():
            yield type(node).__name__.lower(), _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension() if node.ifs:
            yield "filter", _with(node, ifs=[])
        case ast.Return(value=ast.AST()) if not isinstance(node.value, ast.Constant) or node.value.value is not None:
            yield "return", _with(node, value=ast.Constant(None))
        case ast.Break():
            yield "break", ast.Continue()
        case ast.Continue():
            yield "continue", ast.Break()
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "assignment", ast.Pass()
        case _:
            return


def mutants_of(tree: ast.Module, *, texts: bool = True) -> Iterator[tuple[int, str, ast.Module]]:
    """Return line, description and tree of each mutant of a module.

    `texts`: whether texts with a space change, which are messages to people.
    """
    skipped = set(_silent_nodes(tree))
    for node in ast.walk(tree):
        is_message = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if id(node) in skipped or (is_message and not texts):
            continue
        for what, changed in changes_of(node):
            # The copy has a copy of each node, except of the changed one.
            mutant = copy.deepcopy(tree, {id(node): copy.deepcopy(changed)})
            yield getattr(node, "lineno", 0), what, ast.fix_missing_locations(mutant)


def _silent_nodes(tree: ast.AST) -> Iterator[int]:
    """Return the identities of nodes without effect on a run: docstrings, annotations, decorators, types."""
    for node in ast.walk(tree):
        silent: list[Any] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            silent.append(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TypeVar":
            silent.append(node)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            silent.append(node)
        for name in ("annotation", "returns"):
            silent.append(getattr(node, name, None))
        # Most declare what mypy checks, such as a frozen dataclass.
        silent += getattr(node, "decorator_list", ())
        for one in silent:
            if one is not None:
                yield from (id(part) for part in ast.walk(one))


class _Changed(importlib.machinery.SourceFileLoader):
    """Imports one module with the code of a tree; a finder for `sys.meta_path`, too."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        super().__init__(name, str(path))
        self._code = compile(tree, str(path), "exec")

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> Any:
        """Return the spec of the changed module; None for every other one."""
        return (
            importlib.util.spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None
        )

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code."""
        return self._code


@dataclass(frozen=True)
class Choice:
    """Which changes of each module run."""

    sample: int = 0  # their greatest number; 0 for all
    seed: int = 0
    texts: bool = False  # whether messages to people change, too
    again: frozenset[str] | None = None  # the lines of an earlier run, if only the changes that live there run

    def of(self, name: str, tree: ast.Module) -> list[tuple[int, str, ast.Module]]:
        """Return line, description and tree of the chosen mutants of a module, in the order of their lines."""
        every = list(mutants_of(tree, texts=self.texts))
        if self.again is not None:
            every = [mutant for mutant in every if _living(name, *mutant[:2]) in self.again]
        if self.sample and self.sample < len(every):
            every = random.Random(self.seed).sample(every, self.sample)
        return sorted(every, key=lambda mutant: mutant[0])


def _living(name: str, line: int, what: str) -> str:
    return f"{name}:{line}: {what} lives"


def _is_noticed(name: str, path: Path, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Whether the tests fail, or do not end in time, with this code of the module."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(_LIMIT_S)
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, _CPU_LIMIT_S))
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            sys.meta_path.insert(0, _Changed(name, path, tree))
            code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]) != pytest.ExitCode.OK)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def mutate(modules: Mapping[str, Sequence[str]], choice: Choice | None = None) -> int:
    """Print the changes that no test notices, and the score of each module. Returns 1 if the tests could not run.

    `modules` has the full name of each module, and the files of its tests. By default all changes run but those of
    messages.
    """
    choice = choice or Choice()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # pytest compares paths with the folder in which it begins.
    os.chdir(_ROOT)
    for name in _PRELOADED:
        importlib.import_module(name)
    _make_repeatable()
    every = noticed_of_all = 0
    for name, tests in modules.items():
        path = _path_of(name)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if _is_noticed(name, path, tree, tests):
            sys.stderr.write(
                f"mutate: the tests of {name} fail without any change.\nRun them: pytest {' '.join(tests)}\n"
            )
            return 1
        mutants = choice.of(name, tree)
        noticed = 0
        for line, what, mutant in mutants:
            if _is_noticed(name, path, mutant, tests):
                noticed += 1
            else:
                print(_living(name, line, what), flush=True)
        print(f"{name}: {noticed} of {len(mutants)} changes are noticed.", flush=True)
        every += len(mutants)
        noticed_of_all += noticed
    print(f"all: {noticed_of_all} of {every} changes are noticed.", flush=True)
    return 0


def _make_repeatable() -> None:
    """Let tests with random data take the same data in each run, and keep no file of what failed."""
    import hypothesis
    import torch

    # Threads of torch do not survive a fork.
    torch.set_num_threads(1)
    hypothesis.settings.register_profile("mutate", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutate")


def _path_of(name: str) -> Path:
    """Return the file of a module, without importing it."""
    parts = name.split(".")
    for folder in sys.path:
        path = Path(folder or ".", *parts).with_suffix(".py").resolve()
        if path.is_file():
            return path
    sys.exit(f"mutate: there is no module {name}.\nName it below {_PACKAGE}, with dots: hang.blame.")


def main(words: Sequence[str]) -> int:
    """Mutate the areas and modules that the command line names, or all of the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=lambda path: frozenset(Path(path).read_text(encoding="utf-8").splitlines()))
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("names", nargs="*")
    options = vars(parser.parse_args(words))
    table = {name: tests for modules in AREAS.values() for name, tests in modules.items()}
    chosen: dict[str, Sequence[str]] = {}
    for word in options.pop("names"):
        name, _, tests = word.partition("=")
        if word not in AREAS and not tests and word not in table:
            sys.stderr.write(
                f"mutate: '{word}' is no area, and no module of the table.\n"
                f"The areas are {', '.join(AREAS)}; the modules {', '.join(table)}.\n"
                f"Name the files of its tests: {word}=tests/unit/test_x.py\n"
            )
            return 2
        chosen.update(AREAS.get(word) or {name: tests.split(",") if tests else table[name]})
    return mutate({f"{_PACKAGE}.{name}": tests for name, tests in (chosen or table).items()}, Choice(**options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
