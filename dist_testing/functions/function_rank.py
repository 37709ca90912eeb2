"""Calls the function of `dist_testing.run` on a rank, and keeps what it returns for the caller."""

from __future__ import annotations

import importlib
import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.error_text import message_of
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.plain import import_main
from dist_testing.core.unittest.unittest_rank import pytest_skip_class
from dist_testing.functions.values import write_value

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Call = Callable[[], Any]
# The file with the call, in its folder, for ranks that are fresh interpreters.
CALL_FILE = "call"
# The folder of this library.
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class CallRankContext:
    """The rank context of a call: the function itself, where ranks are forked from its process; else its file."""

    def __init__(self, call: Call | None = None) -> None:
        """Make the context. Without `call` the ranks are fresh interpreters, and read the call from a file."""
        self._call = call

    def prepare(self) -> None:
        """Load torch, so that each rank need not."""
        importlib.import_module("torch.distributed")

    def front_end(self, body: CaseBody) -> CallRankFrontEnd:
        """Return the only front end there is."""
        return CallRankFrontEnd(self._call)

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[CallRankFrontEnd]:
        """Return one for each rank; they share the store."""
        from torch._C._distributed_c10d import HashStore

        store = HashStore()
        return [CallRankFrontEnd(self._call, store) for _ in range(world_size)]


class CallRankFrontEnd:
    """Calls one function, once."""

    def __init__(self, call: Call | None, store: Store | None = None) -> None:
        self._call = call
        self._store = store
        self._rank = -1
        self._world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the default group."""
        reporter.phase("init")
        self._rank = start.rank
        self._world = RankWorld.of(start, self._store, runner=reporter.runner)
        self._world.prepare()

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Call the function, and write its value."""
        reporter.phase("call")
        given = json.loads(body.content)
        # The caller has written it, for its own ranks.
        call = pickle.loads(Path(given["folder"], CALL_FILE).read_bytes()) if self._call is None else self._call
        try:
            value = call()
        except BaseException as error:
            if isinstance(error, pytest_skip_class()):
                reporter.skipped(message_of(error))
                return
            reporter.ended_by(error.with_traceback(_own_part(error.__traceback__)))
            return
        # A process that the function has forked has no value of the rank.
        if not reporter.is_forked:
            write_value(value, given["name"], given["folder"], self._rank)

    def finish(self) -> None:
        """Destroy the groups."""
        assert self._world is not None
        self._world.finish()


def _own_part(where: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first entries, of this library, if others follow them."""
    rest = where
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        rest = rest.tb_next
    return where if rest is None else rest


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Import the caller's main module, which `state` names; reading the call imports the module of its function."""
    import_main(state)
    then(CallRankContext())
