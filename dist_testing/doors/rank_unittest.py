"""A unittest method on a rank."""

from __future__ import annotations

import functools
import importlib
import unittest
from types import TracebackType
from typing import Any

from dist_testing.rank.bootstrap import RankStart
from dist_testing.rank.groups import end_groups
from dist_testing.rank.reporter import Reporter

__all__ = ["UnittestDoor", "UnittestSide"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class UnittestSide:
    """The rank side under plain unittest: a class is found by its name."""

    def prepare(self) -> None:
        """Nothing: the modules are imported already."""

    def door(self, body: dict[str, Any]) -> UnittestDoor:
        """The only door there is."""
        return UnittestDoor()


class UnittestDoor:
    """Runs methods of a `MultiProcessTestCase` on a rank, with unittest's own rules.

    `setUp` and `tearDown` belong to the runner; here `setUpRank` and `tearDownRank` take their place. Cleanups,
    sub-tests and skips work as they do anywhere.
    """

    def __init__(self) -> None:
        self._rank = -1

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Nothing is shared but the rank: the tests make their own groups."""
        self._rank = start.rank
        reporter.phase("setup")

    def run(self, body: dict[str, Any], reporter: Reporter) -> None:
        """Make the instance anew and run the method.

        Args:
            body: "module", "qualname", "method", and "attributes" to set on the instance.
            reporter: Where outcomes go.
        """
        module: Any = importlib.import_module(body["module"])
        cls = functools.reduce(getattr, body["qualname"].split("."), module)
        method: str = body["method"]
        test = cls(method)
        test.rank = self._rank
        for name, value in body["attributes"].items():
            setattr(test, name, value)
        # Whether a failure was expected is judged in the runner, over all ranks. A partial carries no such mark.
        test.__unittest_expecting_failure__ = False
        setattr(test, method, functools.partial(_in_phase, reporter, "call", getattr(test, method)))
        test.setUp = functools.partial(_in_phase, reporter, "setup", test.setUpRank)
        test.tearDown = functools.partial(_in_phase, reporter, "teardown", test.tearDownRank)
        test.run(_RankResult(reporter))

    def finish(self) -> None:
        """End the groups that the tests left."""
        end_groups()


def _in_phase(reporter: Reporter, phase: str, function: Any) -> None:
    reporter.phase(phase)
    function()


# Named by nothing public; it is what addSubTest is given.
_SubTest: type = unittest.case._SubTest  # type: ignore[attr-defined]


class _RankResult(unittest.TestResult):
    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def addError(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        self._report(test, err)

    def addFailure(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        self._report(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: _ExcInfo | None) -> None:
        if err is not None:
            self._report(subtest, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._reporter.skipped(reason)

    def _report(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        assert err[1] is not None
        # unittest's own text: without its frames, and with the values of a sub-test.
        text: str = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]  # not in typeshed
        if isinstance(test, _SubTest):
            text = f"{test}\n{text}"
        self._reporter.ended_by(err[1], text)
