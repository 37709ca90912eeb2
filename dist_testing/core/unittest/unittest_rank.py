"""Runs a unittest method on a rank."""

from __future__ import annotations

import functools
import sys
import unittest
from types import TracebackType
from typing import Any

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.bootstrap import RankContext
from dist_testing.core.rank.generators import load_generators, seed_generators
from dist_testing.core.rank.groups import destroy_groups, end_groups
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.unittest_messages import UNITTEST_CASES, read_values

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class UnittestRankContext(RankContext):
    """The rank context under plain unittest: a rank finds a class by its name."""

    def prepare(self) -> None:
        """Seed the generators; the test modules are imported already."""
        load_generators()
        seed_generators()

    def front_end(self, body: CaseBody) -> UnittestRankFrontEnd:
        """Return the only front end there is."""
        return UnittestRankFrontEnd()


class UnittestRankFrontEnd:
    """Runs methods of a `WorldCase` on a rank, with unittest's own rules.

    `setUp` and `tearDown` run in the runner; on a rank `setUpRank` and `tearDownRank` replace them. Cleanups, sub-tests
    and skips work as in any unittest class.
    """

    def __init__(self, *, shows_locals: bool = False) -> None:
        # Whether tracebacks show local variables, also if the runner's result does not ask for them.
        self._shows_locals = shows_locals
        self._rank = -1
        self._destroys_groups = True
        self._is_kept = False
        # Only where the library serves a store for the ranks.
        self._world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the objects that the tests of the class share; most classes share nothing."""
        self._rank = start.rank
        self._is_kept = start.request.pool
        reporter.phase("init")
        if start.request.store_port:
            self._world = RankWorld.of(start, runner=reporter.runner)
            self._world.prepare()
        case = UNITTEST_CASES.from_wire(start.request.body.content)
        cls = case.cls.find()
        read_values(case.values)
        cls._open_rank(start.rank, start.request.size, start.request.directory)

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Make the instance anew and run the method."""
        reporter.phase("setup")
        case = UNITTEST_CASES.from_wire(body.content)
        cls = case.cls.find()
        pipe = RankPipe(reporter, exit_0_passes=cls.exit_0_passes, tb_locals=case.tb_locals or self._shows_locals)
        try:
            cls._run_on_rank(self._rank, case, pipe)
        except _TestEnded:
            pass
        except SystemExit as error:
            # Once the test has passed, torch's suites may end the process themselves.
            if error.code or not pipe.has_passed:
                raise
        self._destroys_groups = pipe.destroys_groups
        if self._is_kept and pipe.destroys_groups and not body.keeps_groups:
            # The next test would not have them, if its process were its own.
            destroy_groups()

    def finish(self) -> None:
        """Destroy the groups that the tests left."""
        if self._destroys_groups:
            end_groups()


# The class of the argument of addSubTest; it has no public name.
_SubTest: Any = unittest.case._SubTest  # type: ignore[attr-defined]


class _TestEnded(SystemExit):
    """Skips the code that a class runs after its test. The test's outcome has been reported."""


class RankPipe(unittest.TestResult):
    """The way from a test to the runner: a class's `_run` receives it and passes it on to `run_test`."""

    def __init__(self, reporter: Reporter, *, exit_0_passes: bool, tb_locals: bool, seeds: bool = True) -> None:
        super().__init__()
        self._reporter = reporter
        # Whether `sys.exit(0)` in the test is a pass.
        self._exit_0_passes = exit_0_passes
        # Whether tracebacks show local variables.
        self.tb_locals = tb_locals
        # Whether the rank has its own random generators, which the pipe seeds for the test.
        self._seeds = seeds
        self.has_run = False
        self.has_passed = False
        self.destroys_groups = True
        # What the test has raised on this rank, skips included.
        self.raised: list[BaseException] = []

    def run(self, test: Any, method: str) -> None:
        """Run one method of an instance, between its `setUpRank` and `tearDownRank`, and report how it went.

        If it does not pass, its outcome is reported, and a SystemExit ends the test on this rank.
        """
        self.has_run = self.has_passed = True
        self.destroys_groups = bool(getattr(test, "destroy_pg_upon_exit", True))
        if self._seeds:
            seed_generators()
        # The runner judges expected failures, over all ranks. A partial does not have the mark of the method.
        test.__unittest_expecting_failure__ = False
        setattr(test, method, functools.partial(self._in_phase, "call", getattr(test, method)))
        test.tearDown = functools.partial(self._in_phase, "teardown", test.tearDownRank)
        test.setUp = functools.partial(self._in_phase, "setup", test.setUpRank)
        # Not `test.run`: base classes override it for the runner.
        unittest.TestCase.run(test, self)
        if not self.has_passed:
            raise _TestEnded

    def _in_phase(self, phase: str, function: Any) -> Any:
        self._reporter.phase(phase)
        return function()

    def addError(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        """Report what the test has raised: a failure, or a skip by pytest."""
        error = err[1]
        assert error is not None
        self.has_passed = False
        if isinstance(error, pytest_skip_class()):
            self.addSkip(test, str(error))
            return
        if self._exit_0_passes and isinstance(error, SystemExit) and not error.code:
            return
        self.raised.append(error)
        # unittest's own text has no frames of unittest.
        text: str = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]  # not in typeshed
        if isinstance(test, _SubTest):
            text = f"{test}\n{text}"
        self._reporter.ended_by(error, text)

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: _ExcInfo | None) -> None:
        """Report the failure of a sub-test."""
        if err is not None:
            self.addError(subtest, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """Report a skip."""
        self.has_passed = False
        self.raised.append(unittest.SkipTest(reason))
        self._reporter.skipped(reason)


def pytest_skip_class() -> type[BaseException] | tuple[()]:
    """Return the class of what `pytest.skip` raises, if it can have been called in this process."""
    skip: Any = getattr(sys.modules.get("pytest"), "skip", None)
    return () if skip is None else skip.Exception
