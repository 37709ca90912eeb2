"""Runs cells on the engine: on worker pools, each cell with its own limit, and doubtful cells once more alone."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dist_testing.conformance.cell import Cell, Observation, Result, Status
from dist_testing.conformance.expectations import Expectations
from dist_testing.conformance.judge import judge
from dist_testing.conformance.matrix import Matrix
from dist_testing.conformance.on_rank.front_end import CellContext
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.interrupts import raise_on_termination
from dist_testing.core.engine.needs import missing_need
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.budget import Budget, timeout_in
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.codec import shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Status as CaseStatus
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import POOL, default_isolation
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.torch_version import torch_version

# Default limit of one cell. Seconds.
CELL_LIMIT_S = 5.0
_LEFT_OUT = "left out by a row of the expectation file, which says why"


def cell_limit(name: str, text: str | None) -> float:
    """Return the limit of a cell that a user gave as an option or variable of this name, in seconds.

    It is the default for None or "".

    Raises:
        UsageError: If it is no number of seconds from 1.
    """
    seconds = timeout_in(text) if text else CELL_LIMIT_S
    if seconds is None or seconds < 1:
        raise UsageError(
            f"{name}={text}: expected a number of seconds from 1.\n"
            "It is the limit of each cell, and what a cell that hangs costs.\n"
            f"Write {name}=20, for example; the default is {CELL_LIMIT_S:.0f}."
        )
    return seconds


class CellSession:
    """Runs cells of one backend. Use it as a context manager."""

    def __init__(
        self,
        backend: Backend,
        budget: Budget | None = None,
        *,
        expectations: Expectations | None = None,
        preloads: bool = True,
        limit_s: float = CELL_LIMIT_S,
        debug_rank: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a session, without a limit of time unless there is a budget. It starts no process yet.

        `expectations` says what is expected of the backend, by default what the contract asks for. `preloads`: the
        cells to come use functional collectives, whose modules then load before the ranks. `limit_s` is the limit of
        one cell, in seconds: what a hang costs at most. `debug_rank` is the rank that gets the terminal.
        `settings` is what a target or the command line asks of add-ons, as in a `Spec`.
        """
        self.expectations = expectations or Expectations()
        self.matrix = Matrix(backend.name, torch_version())
        self._results: dict[Cell, tuple[Result, str]] = {}
        self._before: list[Cell] = []  # the cells that have run on the ranks of the present pool
        # Cells compute little, and threads that wait for each other's turn on a busy machine would cost their limit.
        self.backend = dataclasses.replace(backend, env={"OMP_NUM_THREADS": "1", **backend.env})
        self._limit_s = limit_s
        # Threads, where the backend is one of threads.
        self._isolation = (default_isolation(backend) if backend.in_process else POOL).name
        self._spec = Spec("", self.backend, (1,), self._isolation, settings=settings or {})
        loader = Loader(CellContext.__module__, "preload" if preloads else "")
        self._engine = Engine(self._spec, budget or Budget(), CellContext(preloads), loader)
        self._engine.debug_rank = debug_rank
        # Returns why a world of this size cannot run here; None if it can. It raises `UsageError` if the import of the
        # backend's module fails.
        self.missing_need = functools.cache(functools.partial(missing_need, self._spec))

    def __enter__(self) -> Self:
        raise_on_termination()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def checked(self, cell: Cell) -> tuple[Result, str]:
        """Run a cell once, enter it in the matrix, and return its result and `Expectations.problem`."""
        if cell not in self._results:
            result = self.run(cell, self.expectations.status_of(cell))
            self.matrix.add(result, self.expectations)
            self._results[cell] = result, self.expectations.problem(result)
        return self._results[cell]

    def run(self, cell: Cell, expected: Status | None = None) -> Result:
        """Run a cell. If it ends otherwise than expected, run it again on ranks of its own, and return that result.

        If the two differ, it runs once more after the cells that came before it. If it ends there as it did at first,
        the result that does not work counts, and its detail has both circumstances.

        `expected` is the status that the expectation file names; by default the contract's.

        Raises:
            LaunchError: If ranks could not be started.
            UsageError: If the import of the backend's module fails, or the world is too large.
        """
        if expected is Status.NOT_RUN:
            return Result(cell, Status.NOT_RUN, _LEFT_OUT)
        if missing := self.missing_need(cell.world_size):
            return Result(cell, Status.NOT_RUN, missing)
        # A cell that must hang tells so by the default limit, too, and costs the whole of it.
        limit_s = min(self._limit_s, CELL_LIMIT_S) if expected is Status.HANGS else self._limit_s
        before = self._cells_before(cell)
        first = self._once(cell, limit_s)
        if first.status is (expected or cell.contract) or first.status is Status.NOT_RUN:
            return first
        alone = self._once(cell, limit_s, alone=True)
        if alone.status is first.status:
            return alone
        for one in before:
            self._once(one, limit_s)
        again = self._once(cell, limit_s) if before else alone
        if again.status is first.status:
            # What a cell leaves in its process changes a later one. That is no chance, and no cell that works.
            counts, other = (alone, again) if again.status is Status.WORKS else (again, alone)
            place = "on ranks of its own" if other is alone else "after other cells on the same ranks"
            return dataclasses.replace(counts, detail=f"{counts.detail} ({place}: {other.status.value})")
        # In the log only: it happened once, and the table must be the same in every run.
        self._engine.log_line(
            f"dist_testing: {cell.name}: {alone.status.value} on ranks of its own, which counts; "
            f"among other cells it was, once: {first.status.value}, {first.detail}"
        )
        return alone

    def _cells_before(self, cell: Cell) -> list[Cell]:
        """Return the cells that have run on the ranks that this one will get."""
        if cell.fresh or (self._before and self._before[-1].world_size != cell.world_size):
            return []
        return self._before.copy()

    def _once(self, cell: Cell, limit_s: float, *, alone: bool = False) -> Result:
        pool = "" if cell.fresh or alone else "cells"
        before = self._cells_before(cell) if pool else []
        if not before:
            # A new world, but not before the ranks of the last one are gone.
            self._engine.end_pool()
            self._before = []
        # A rank that is left may still write.
        with tempfile.TemporaryDirectory(prefix="dist-testing-cell-", ignore_cleanup_errors=True) as directory:
            order = json.dumps({"cell": cell.name, "directory": directory})
            case = Case(
                name=cell.name,
                world_size=cell.world_size,
                # Groups stay for the next cell, and the kit puts back everything else.
                body=CaseBody("conformance", order, keeps_state=True, keeps_groups=True),
                timeout_s=limit_s,
                isolation=self._isolation,
                pool=pool,
                init=not cell.fresh,
            )
            result = self._engine.run(case)
            is_kept = pool and result.verdict.status is CaseStatus.PASSED
            self._before = [*before, cell] if is_kept else []
            files = Path(directory).glob("rank-*.json")
            every = [shape_of(Observation).read(json.loads(file.read_bytes())) for file in files]
        return judge(cell, result, {one.rank: one for one in every}, limit_s)
