"""Changes torch.distributed's Python layer in one place at a time, and runs the cells that must notice it.

Run it by hand: `python -m tests.conformance.mutate_c10d [FUNCTION ...]`, on the backend gloo. It takes the public
functions of `torch.distributed.distributed_c10d`, leaves out a check, another statement or a return value, or negates a
condition, and runs the cells of that function until one ends otherwise than its expectation says. It prints each change
that no cell notices, and the score. docs/evidence/mutants.md has the last one.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import Cell
from dist_testing.conformance.expectations import read_expectations
from dist_testing.conformance.kit_session import CellSession
from dist_testing.conformance.rows.registry import script_of
from dist_testing.core.ground.backends import backend_named
from tests.support.mutate import mutants_of

_C10D: Any = dist.distributed_c10d
_EXPECTATIONS = Path(__file__).parents[2] / "backends" / "gloo" / "conformance.json"
# A check, a warning or another call that is left out; a value that is not returned; a condition that is negated.
_CHANGES = ("statement", "return", "if")
# A change can make every cell of a function hang. Seconds.
_LIMIT_S = 90


def functions() -> list[str]:
    """Return the names of the public functions of the module."""
    found = [name for name in _C10D.__all__ if inspect.isfunction(getattr(_C10D, name))]
    return [name for name in found if inspect.unwrap(getattr(_C10D, name)).__module__ == _C10D.__name__]


def changes(tree: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    """Yield each change of a function: a text, and the changed function."""
    for line, what, mutant in mutants_of(ast.Module([tree], []), texts=False):
        if what in _CHANGES:
            yield f"{line}: {what}", mutant.body[0]


def cells_of(name: str) -> list[Cell]:
    """Return the cells that name a function, those of small worlds first."""
    word = re.compile(rf"\b{name}\b")

    def names_it(cell: Cell) -> bool:
        script: Any = script_of(cell)
        function = script.func if isinstance(script, partial) else script
        return bool(word.search(cell.name) or (script and word.search(inspect.getsource(function))))

    return sorted(filter(names_it, all_cells()), key=lambda cell: (cell.world_size, cell.fresh))


def is_noticed(changed: ast.FunctionDef, cells: Sequence[Cell]) -> bool:
    """Return whether a cell notices the change, in a process of its own."""
    if (pid := os.fork()) == 0:
        os.setpgid(0, 0)
        code = 1
        try:
            _put(changed)
            with CellSession(backend_named("gloo"), expectations=read_expectations(_EXPECTATIONS, "gloo")) as session:
                session._engine.log_line = lambda line: None
                code = 0 if any(session.checked(cell)[1] for cell in cells) else 3
        finally:
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], [], [], _LIMIT_S)[0]:
        os.killpg(pid, signal.SIGKILL)
    os.close(pidfd)
    # A change that ends the process, or that hangs for so long, has been noticed.
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 3


def _put(changed: ast.FunctionDef) -> None:
    former = getattr(_C10D, changed.name)
    exec(compile(ast.Module([changed], []), _C10D.__file__, "exec"), vars(_C10D))
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is former:
                setattr(module, name, getattr(_C10D, changed.name))


def main(names: Sequence[str]) -> int:
    """Print the changes that no cell notices, and the score of each function."""
    tree = ast.parse(inspect.getsource(_C10D))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    total = noticed = 0
    for name in names or functions():
        cells, every = cells_of(name), list(changes(found[name]))
        lives = [text for text, changed in every if not (cells and is_noticed(changed, cells))]
        total, noticed = total + len(every), noticed + len(every) - len(lives)
        print(f"{name}: {len(every) - len(lives)} of {len(every)}, {len(cells)} cells", flush=True)
        for text in lives:
            print(f"    lives: line {text}", flush=True)
    print(f"{noticed} of {total} changes are noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
