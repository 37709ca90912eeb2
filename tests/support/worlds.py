"""Runs plain functions on the ranks of real worlds: the cases of the tests of the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psutil
from torch._C._distributed_c10d import HashStore, Store

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.ground.backends import Backend, backend_named
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import default_isolation
from dist_testing.core.process.launcher_messages import Loader, RankStart
from dist_testing.core.rank.bootstrap import RankFrontEnd
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest import plain
from tests.support.starter import is_alive, living_below

Function = Callable[[World, dict[str, Any]], None]


class Functions:
    """A front end whose cases are functions, found by name."""

    def __init__(self, functions: Mapping[str, Function], store: Store | None = None) -> None:
        self._functions = functions
        self._store = store
        self._world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Create the world."""
        reporter.phase("init")
        self._world = RankWorld.of(start, self._store, runner=reporter.runner)
        self._world.prepare()

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Call the function that the case names."""
        assert self._world is not None
        self._world.begin_case()
        reporter.phase("call")
        arguments = json.loads(body.content)
        self._functions[arguments["function"]](cast("World", self._world), arguments)

    def finish(self) -> None:
        """Destroy the groups."""
        assert self._world is not None
        self._world.finish()


class FunctionRankContext:
    """The rank context whose only front end is `Functions`."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def prepare(self) -> None:
        """Do nothing: the functions exist already."""

    def front_end(self, body: CaseBody) -> Functions:
        """Return the only front end."""
        return Functions(self._functions)

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[RankFrontEnd]:
        """Return a front end for each thread, with one store for all."""
        store = HashStore()
        return [Functions(self._functions, store) for _ in range(world_size)]


@contextmanager
def engine_for(
    functions: Mapping[str, Function],
    *,
    backend: str | Backend = "gloo",
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Engine]:
    """Create an engine whose cases are `functions`, and check at the end that it has left nothing behind."""
    declared = backend_named(backend) if isinstance(backend, str) else backend
    isolation = default_isolation(declared).name
    spec = Spec("", declared, (4,), isolation, settings=settings or {})
    before = set(os.listdir("/proc/self/fd"))
    others = psutil.Process().children(recursive=True)
    engine = Engine(spec, Budget(), FunctionRankContext(functions), Loader(plain.__name__, plain.main_module()))
    try:
        yield engine
    finally:
        engine.close()
    # A zombie that lost its parent is left to this process to reap, and holds nothing any more.
    left = [process for process in living_below(os.getpid()) if process not in others]
    assert not left, f"processes are left: {left}"
    opened = {fd for fd in set(os.listdir("/proc/self/fd")) - before if os.path.exists(f"/proc/self/fd/{fd}")}
    assert not opened, f"descriptors are left: {[os.readlink(f'/proc/self/fd/{fd}') for fd in opened]}"


def run(engine: Engine, function: str, *, world_size: int = 4, timeout_s: float = 60.0, **more: Any) -> CaseResult:
    """Run one function of the engine, by its name, as a case.

    `more` are fields of `Case`; "arguments" goes to the function, and "strict_calls" to the body.
    """
    arguments = more.pop("arguments", {})
    content = json.dumps({"function": function, **arguments})
    body = CaseBody("functions", content, strict_calls=more.pop("strict_calls", False))
    isolation = more.pop("isolation", engine.spec.isolation)
    return engine.run(Case(function, world_size, body, timeout_s, isolation, **more))


def to_the_deadline(engine: Engine, function: str, **more: Any) -> Iterator[CaseResult]:
    """Yield the results of a case that must reach its deadline, at longer and longer ones.

    A caller stops at a right one: a busy machine may reach the first deadline before all ranks are where they stay.
    """
    for timeout_s in (1.5, 12.0, 96.0):
        yield run(engine, function, timeout_s=timeout_s, **more)


def alive(pid: int) -> bool:
    """Return whether a process exists and a thread of it still runs."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
