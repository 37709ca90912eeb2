"""Changes torch.distributed's Python layer in one place at a time, and runs the cells that must notice it.

Run it by hand, on the backend gloo and on plug-ins that can split and shrink groups:

    python -m tests.conformance.mutate_c10d FILE [--seconds=N] [FUNCTION ...]

It takes the public functions of `torch.distributed.distributed_c10d`, leaves out a check, another statement or a return
value, or negates a condition. First it records which lines of the module each cell executes. Then it runs the cells
that execute the changed line, until one ends otherwise than without the change. FILE keeps what is known: the next run
goes on where one ended, after N seconds for example. At its end, the run prints the score and each change that no cell
notices. docs/evidence/mutants.md has the last one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import marshal
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from dist_testing.conformance.catalogue import all_cells
from dist_testing.conformance.cell import WHOLE, Cell, Status
from dist_testing.conformance.expectations import read_expectations
from dist_testing.conformance.kit_session import CellSession
from dist_testing.conformance.on_rank.front_end import CellContext, CellFrontEnd
from dist_testing.conformance.rows import script_of
from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.backends import Backend, backend_named
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.rank.reporter import Reporter
from tests.support.mutate import mutants_of

_C10D = "torch.distributed.distributed_c10d"
_EXPECTATIONS = Path(__file__).parents[2] / "backends" / "gloo" / "conformance.json"
# A check, a warning or another call that is left out; a value that is not returned; a condition that is negated.
_CHANGES = ("statement", "return", "if")
# Messages for the log, settings of Meta's own build, communicators of torchcomms: no caller sees them.
_WITHOUT_EFFECT = re.compile(r"logger\.|set_pytorch_distributed_envs_from_justknobs|_world\.comms|comm\.finalize")
# Conditions that are constant on one build of torch, one kind of device, or one backend. A line behind one of them that
# no cell executes cannot run here, and does not count.
_CONSTANT = re.compile(
    r"torchcomms|_TORCHCOMM_AVAILABLE|accelerator\.is_available|device_id|device\.type|_is_fp8|Backend\.(MPI|GLOO)|"
    r"supports_coalescing|_has_hooks"
)
_LARGEST_WORLD = 4
# Cells that execute a change, for it to be one of their own.
_FEW = 5
# Function to the plug-in that can do it; others run on gloo.
_PLUG_INS = {"split_group": "splitting", "shrink_group": "shrinking"}


@dataclass(frozen=True)
class Mutant:
    """One change of a function."""

    function: str
    line: int
    last_line: int  # of the changed statement, or of the condition
    what: str  # "statement", "return" or "if"
    source: str  # the first line of what changes
    is_guarded: bool  # whether it stands behind a condition that is constant here
    code: CodeType  # of the changed function

    @property
    def lines(self) -> range:
        """The lines that change."""
        return range(self.line, self.last_line + 1)

    @property
    def name(self) -> str:
        """A stable name for one version of torch."""
        return f"{self.function}:{self.line}: {self.what}"


def mutants() -> Iterator[Mutant]:
    """Yield every change that a caller could see."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    path = Path(spec.origin or "").parent / "distributed" / "distributed_c10d.py"
    text = path.read_text(encoding="utf-8")
    body = ast.parse(text).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    listed = next(node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    for name in filter(functions.__contains__, ast.literal_eval(listed.value)):
        function = functions[name]
        function.decorator_list = []
        guarded = set(_guarded_lines(function))
        for line, what, mutant in mutants_of(ast.Module([function], []), texts=False):
            source = text.splitlines()[line - 1].strip()
            if what in _CHANGES and not _WITHOUT_EFFECT.search(source):
                module = compile(mutant, str(path), "exec")
                code = next(one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == name)
                yield Mutant(name, line, _last_line(function, line), what, source, line in guarded, code)


def _guarded_lines(function: ast.FunctionDef) -> Iterator[int]:
    for node in ast.walk(function):
        if isinstance(node, ast.If) and _CONSTANT.search(ast.unparse(node.test)):
            for part in (*node.body, *node.orelse):
                yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)


def _last_line(function: ast.FunctionDef, line: int) -> int:
    found: list[int] = []
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.IfExp | ast.stmt) and node.lineno == line:
            place = node.test if isinstance(node, ast.If | ast.IfExp) else node
            found.append(place.end_lineno or line)
    return max(found, default=line)


class MutantContext(CellContext):
    """The context of ranks that change a function for one cell, or record the lines that a cell executes."""

    def __init__(self, folder: Path) -> None:
        """Make the context. `folder` has the order for the next cell, and gets the lines."""
        super().__init__(preloads=False)
        self._folder = folder

    def front_end(self, body: CaseBody) -> CellFrontEnd:
        """Return the front end of a rank."""
        return MutantFrontEnd(self._folder)


class MutantFrontEnd(CellFrontEnd):
    """Runs one cell after the other, each with its own change of torch's code."""

    def __init__(self, folder: Path) -> None:
        """Make the front end of a rank."""
        super().__init__()
        self._folder = folder

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run a cell with the function that the order names, or with a tracer."""
        c10d = importlib.import_module(_C10D)
        name, code = marshal.loads((self._folder / "order").read_bytes())
        if code is None:
            with _traced(c10d.__file__ or "", self._folder):
                super().run(body, reporter)
            return
        # In place: other modules, and decorators, hold the same function.
        function = inspect.unwrap(getattr(c10d, name))
        former, function.__code__ = function.__code__, code
        try:
            super().run(body, reporter)
        finally:
            function.__code__ = former


@contextmanager
def _traced(file: str, folder: Path) -> Iterator[None]:
    """Write the lines of a file that the block executes to a new file in the folder."""
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        lines.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        Path(tempfile.mkstemp(dir=folder, suffix=".lines")[1]).write_text(json.dumps(sorted(lines)))


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Be a fork server. `state` is the folder of orders; `test` is unused."""
    then(MutantContext(Path(state)))


class _Session(CellSession):
    """Runs cells with one change each."""

    def __init__(self, name: str, folder: Path) -> None:
        module = "tests.conformance.able_groups"
        backend = backend_named(name) if name == "gloo" else Backend(name, name, "cpu", register_module=module)
        super().__init__(backend, preloads=False)
        self._folder = folder
        self._engine = Engine(self._spec, Budget(), MutantContext(folder), Loader(__spec__.name, str(folder)))
        self._engine.log_line = lambda line: None

    def lines(self, cell: Cell) -> tuple[Status, list[int]]:
        """Return how a cell ends without a change, and the lines of the module that its ranks execute."""
        status = self._with(None, cell)
        files = list(self._folder.glob("*.lines"))
        found = {line for file in files for line in json.loads(file.read_text() or "[]")}
        for file in files:
            file.unlink()
        return status, sorted(found)

    def notices(self, cell: Cell, mutant: Mutant, usual: Status) -> bool:
        """Return whether a cell ends otherwise with a change, and not because of what earlier changes have left."""
        if self._with(mutant, cell) is usual:
            return False
        if self._with(None, cell) is usual and self._before:
            return True
        return self._with(mutant, cell, alone=True) is not usual

    def _with(self, mutant: Mutant | None, cell: Cell, *, alone: bool = False) -> Status:
        order = (mutant.function, mutant.code) if mutant else ("", None)
        (self._folder / "order").write_bytes(marshal.dumps(order))
        return self._once(cell, self._limit_s, alone=alone).status


def _chosen(backend: str) -> list[Cell]:
    """Return the cells that can differ in what the Python layer does: of each script, and of each kind of call."""
    expectations = read_expectations(_EXPECTATIONS, "gloo")
    chosen: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in sorted(all_cells(), key=lambda cell: cell.world_size):
        if expectations.status_of(cell) is Status.NOT_RUN or cell.is_functional:
            continue
        if _PLUG_INS.get(cell.operation, backend) != backend:
            continue
        if script_of(cell):
            chosen.setdefault((cell.operation, cell.variant, cell.group), []).append(cell)
        elif 1 < cell.world_size <= _LARGEST_WORLD:
            place = (cell.root.endswith("_in_group"), cell.group in (WHOLE, "world"))
            kind = (cell.dtype == "complex64", cell.contract, cell.mode, cell.variant, *place)
            chosen.setdefault((cell.operation, *kind), [cell])
    # Of a script one size: the smallest one with several ranks, where there is one.
    found = [next((cell for cell in cells if cell.world_size > 1), cells[0]) for cells in chosen.values()]
    return sorted((cell for cell in found if backend == "gloo" or cell.operation in _PLUG_INS), key=_cost)


def _cost(cell: Cell) -> tuple[bool, int]:
    return cell.fresh, cell.world_size


def main(words: Sequence[str]) -> int:
    """Find out about the changes that FILE does not know, for a time, and print the score."""
    file = Path(words[0])
    limit_s = float(next((word.partition("=")[2] for word in words if word.startswith("--seconds=")), "inf"))
    names = [word for word in words[1:] if not word.startswith("-")]
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    end_s = time.monotonic() + limit_s
    every = [one for one in mutants() if not names or one.function in names]
    for backend in ("gloo", *_PLUG_INS.values()):
        some = [one for one in every if _PLUG_INS.get(one.function, "gloo") == backend]
        if any(one.name not in known for one in some):
            with (
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
                _Session(backend, Path(folder)) as session,
            ):
                for _ in _steps(session, some, known):
                    file.write_text(json.dumps(known))
                    if time.monotonic() > end_s:
                        return _report(every, known)
    return _report(every, known)


def _steps(session: _Session, every: Sequence[Mutant], known: dict[str, Any]) -> Iterator[None]:
    """Enter in `known` what is not there yet: first what the cells execute without a change, then each change."""
    by_name = {cell.name: cell for cell in _chosen(session.backend.name)}
    baseline = known.setdefault(f"cells of {session.backend.name}", {})
    for cell in by_name.values():
        if cell.name not in baseline:
            baseline[cell.name] = session.lines(cell)
            yield
    for mutant in every:
        if mutant.name not in known:
            cells = [by_name[name] for name in by_name if not set(baseline[name][1]).isdisjoint(mutant.lines)]
            cells.sort(key=lambda cell: (mutant.function not in (cell.operation, cell.name), *_cost(cell)))
            usual = {cell.name: Status(baseline[cell.name][0]) for cell in cells}
            noticing = next((cell.name for cell in cells if session.notices(cell, mutant, usual[cell.name])), "")
            known[mutant.name] = [noticing, len(cells)]
            yield


def _report(every: Sequence[Mutant], known: dict[str, Any]) -> int:
    answered = [one for one in every if one.name in known]
    asked = [one for one in answered if known[one.name][1] or not one.is_guarded]
    noticed = [one for one in asked if known[one.name][0]]
    for one in asked:
        if one not in noticed:
            print(f"{one.name}, executed by {known[one.name][1]} cells: {one.source}")
    print(f"{len(noticed)} of {len(asked)} changes are noticed.")
    print(f"{len(answered) - len(asked)} cannot run here; {len(every) - len(answered)} have not been asked about.")
    for operation, variants in sorted(_about_backends(noticed, known).items()):
        print(f"without a change of their own: {operation}: {', '.join(sorted(variants))}")
    return 0


def _about_backends(noticed: Sequence[Mutant], known: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells with a script that no change needs, by operation: they are there for what a backend does.

    A change needs the cell that noticed it first, and each cell that executes it if at most a few do.
    """
    lines = {name: set(found[1]) for of in known if of.startswith("cells of ") for name, found in known[of].items()}
    needed = {known[one.name][0] for one in noticed}
    for one in noticed:
        reached = [name for name in lines if not lines[name].isdisjoint(one.lines)]
        needed.update(reached if len(reached) <= _FEW else ())
    found: dict[str, list[str]] = {}
    for cell in all_cells():
        if cell.name in lines and cell.name not in needed and script_of(cell):
            found.setdefault(cell.operation, []).append(cell.variant)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
