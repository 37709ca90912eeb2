"""Plain unittest: the session that is made at first use, and the loader of its tests in a fresh interpreter."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import sys
import types
import unittest
from collections.abc import Iterator
from typing import NoReturn

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.rank_logs import print_output
from dist_testing.core.events.event import RankOutput
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import RUNS_ON_RANKS
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, Spec
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.launch.isolation import default_isolation
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.session import session
from dist_testing.core.session.existing_world import existing_rank
from dist_testing.core.session.session import Session, open_session
from dist_testing.core.unittest.unittest_rank import UnittestRankContext

# $DIST_TESTING_LIVE (user): 1 shows the output of ranks while they print it, under plain unittest and `python -m
# dist_testing.compat`; with pytest, use -s (default: 0).
_SHOWS_OUTPUT = "DIST_TESTING_LIVE"


def current_session() -> Session:
    """Return the current session; under plain unittest, one with the defaults of the command line."""
    if (current := session.current_session()) is None:
        backend = default_backend()
        spec = Spec("", backend, (DEFAULT_WORLD_SIZE,), default_isolation(backend).name)
        engine = Engine(spec, Budget(), UnittestRankContext(), Loader(__name__, main_module()))
        atexit.register(engine.close)
        if os.environ.get(_SHOWS_OUTPUT, "") not in ("", "0"):
            engine.events.subscribe(print_output, RankOutput, name="the ranks' output")
        found = None
        # RANK without the other variables, or an impossible one: there is no world.
        with contextlib.suppress(UsageError):
            found = existing_rank()
        current = Session(engine, float(backend.timeout_s), ignored_rank_info=found and found[1])
        open_session(current)
    return current


def _first_run(self: unittest.TestSuite, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
    """Run a suite, after the fork server has been forked from this process, in which no test has run yet."""
    unittest.TestSuite.run = _suite_run  # type: ignore[method-assign]  # only once
    if any(getattr(test, RUNS_ON_RANKS, False) for test in _tests(self)):
        # What is wrong with the run is the error of its first case.
        with contextlib.suppress(DistTestingError):
            current_session().engine.prepare()
    return _suite_run(self, result, debug)


def _tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


# unittest has no hook before the first test, and a test or `setUpClass` would leave its traces to all ranks.
_suite_run = unittest.TestSuite.run
unittest.TestSuite.run = _first_run  # type: ignore[method-assign]


def main_module() -> str:
    """Return how a fresh interpreter imports the main module of this process: a text for `import_main`.

    It has the module's name, if Python was started with `-m`, and its file.
    """
    main = sys.modules["__main__"]
    return json.dumps([getattr(getattr(main, "__spec__", None), "name", None), getattr(main, "__file__", None)])


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Import the main module; a rank imports the module of its class when it looks for it."""
    del test
    import_main(state)
    then(UnittestRankContext())


def import_main(state: str) -> None:
    """Import the main module as multiprocessing does: not under the name that makes it run its tests."""
    name, path = json.loads(state)
    if name is None and path is not None:
        content = runpy.run_path(path, run_name="__mp_main__")
    elif name is not None and not name.endswith("__main__"):
        content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
    else:
        # `python -m unittest`: its main module has no tests, and its import would start a run.
        return
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
