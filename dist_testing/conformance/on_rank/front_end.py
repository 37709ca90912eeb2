"""Runs cells on a rank, and writes what the rank observed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dist_testing.conformance.catalogue import cells_by_name
from dist_testing.conformance.cell import Observation, Seen
from dist_testing.conformance.kit import AbsentError, Kit, WrongError, first_line
from dist_testing.conformance.rows import script_of
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.whole_file import whole_file
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.bootstrap import RankFrontEnd
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class PoisonedError(Exception):
    """The group does not work any more after the cell, so the runner has to throw the ranks away."""


class CellContext:
    """The rank context of a run of the kit."""

    def __init__(self, preloads: bool) -> None:
        """Make the context. `preloads`: load the modules of functional collectives for all ranks, for a second."""
        self._preloads = preloads
        self._cases = 0

    def prepare(self) -> None:
        """Import what all ranks need, once."""
        import torch.distributed

        from dist_testing.conformance.on_rank import table  # noqa: F401

        # Filters of the runner, such as pytest's, must not turn a warning of torch into an error of the backend.
        warnings.resetwarnings()
        warnings.simplefilter("ignore")

        if self._preloads:
            # Functional collectives import it with their first call: each rank for a second, in the middle of a cell.
            with contextlib.suppress(ImportError):
                import torch._dynamo  # noqa: F401

    def front_end(self, body: CaseBody) -> RankFrontEnd:
        """Return the front end of a rank that is a process."""
        return CellFrontEnd()

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[RankFrontEnd]:
        """Return the front ends of ranks that are threads; they share a store in memory."""
        from torch._C._distributed_c10d import HashStore

        store = HashStore()
        self._cases += 1
        return [CellFrontEnd(store, self._cases) for _ in range(world_size)]


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Be a rank or a fork server. There are no tests to collect: the cells are part of the package.

    `state` is "preload", or "" for a run without functional collectives; `test` is unused.
    """
    then(CellContext(preloads=bool(state)))


class CellFrontEnd:
    """Runs one cell after the other on one rank."""

    def __init__(self, store: Store | None = None, cases: int = 0) -> None:
        """Make the front end of a rank. `store` is for ranks that are threads; `cases` counts those before this one."""
        self._store = store
        self._cases = cases
        self._world: RankWorld | None = None
        self._groups: dict[str, Any] = {}
        self._number = 0

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the world, with its default group if the cell wants one."""
        reporter.phase("init")
        self._world = RankWorld.of(start, self._store, self._cases)
        self._world.prepare()

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run one cell and write the observation; raise `PoisonedError` if the group does not work any more."""
        assert self._world is not None
        order = json.loads(body.content)
        self._world.begin_case()
        self._number += 1
        reporter.phase("call")
        kit = Kit(cells_by_name()[order["cell"]], self._world, self._groups, self._number)
        observation = _observe(kit)
        # In one step: the runner may end this rank at any time.
        with whole_file(Path(order["directory"], f"rank-{observation.rank}.json")) as file:
            file.write(json.dumps(dataclasses.asdict(observation)).encode())
        if not observation.lives:
            raise PoisonedError(observation.text)
        if observation.seen is Seen.RIGHT:
            kit.end()

    def finish(self) -> None:
        """Destroy the groups that do not end with the process."""
        assert self._world is not None
        self._world.finish()


def _observe(kit: Kit) -> Observation:
    from dist_testing.conformance.on_rank.table import Site, run_table_cell

    kit.site = functools.partial(Site, kit)
    started_s = time.monotonic()
    seen, text = Seen.RIGHT, ""
    try:
        (script_of(kit.cell) or run_table_cell)(kit)
    except WrongError as error:
        seen, text = Seen.WRONG, str(error)
    except AbsentError as error:
        seen, text = Seen.ABSENT, str(error)
    except Exception as error:
        seen, text = Seen.ERROR, f"{type(error).__name__}: {first_line(error)}"
    seconds = time.monotonic() - started_s
    return Observation(kit.rank, seen, text, seconds, lives=kit.cell.fresh or _lives(kit, seen))


def _lives(kit: Kit, seen: Seen) -> bool:
    """Return whether a good call works after a cell in which a rank did not see what it should; True if all did."""
    store, key = kit.world.store, kit.key("trouble")
    if seen in (Seen.ERROR, Seen.WRONG):
        store.add(key, 1)
    try:
        # A rank that is still in the call does not come; the runner then tells who waits for whom.
        kit.meet()
        if not store.add(key, 0):
            return True
        group = kit.group(kit.cell.group)
        if kit.rank in kit.ranks:
            # More than once: an error may come with a later call.
            for _ in range(2):
                kit.check_sum(group, kit.ranks)
                kit.check_gather(group, kit.ranks)
                kit.dist.barrier(group)
        return True
    except Exception:
        return False
