"""A unittest method on a rank."""

from __future__ import annotations

import functools
import importlib
import unittest
from types import TracebackType
from typing import Any, cast

from dist_testing.rank.bootstrap import RankStart
from dist_testing.rank.reporter import Reporter

__all__ = ["UnittestBody"]

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class UnittestBody:
    """Runs one method of a `MultiProcessTestCase` on a rank, with unittest's own rules.

    `setUp` and `tearDown` belong to the runner; here `setUpRank` and `tearDownRank` take their place. Cleanups,
    sub-tests and skips work as they do anywhere.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        """Find the class.

        Args:
            body: "module", "qualname", "method", and "attributes" to set on the instance.
        """
        self._class = functools.reduce(
            getattr, body["qualname"].split("."), cast(Any, importlib.import_module(body["module"]))
        )
        self._method: str = body["method"]
        self._attributes: dict[str, Any] = body["attributes"]

    def run(self, start: RankStart, reporter: Reporter) -> None:
        """Make the instance anew and run the method."""
        test = self._class(self._method)
        test.rank = start.rank
        for name, value in self._attributes.items():
            setattr(test, name, value)
        # Whether a failure was expected is judged in the runner, over all ranks. A partial carries no such mark.
        test.__unittest_expecting_failure__ = False
        setattr(test, self._method, functools.partial(_in_phase, reporter, "call", getattr(test, self._method)))
        test.setUp = functools.partial(_in_phase, reporter, "setup", test.setUpRank)
        test.tearDown = functools.partial(_in_phase, reporter, "teardown", test.tearDownRank)
        result = _RankResult(reporter)
        test.run(result)
        if not result.has_reported:
            reporter.passed()

    def finish(self) -> None:
        """Destroy the groups that the test left, unless its class wants to keep them."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _in_phase(reporter: Reporter, phase: str, function: Any) -> None:
    reporter.phase(phase)
    function()


class _RankResult(unittest.TestResult):
    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter
        self.has_reported = False

    def addError(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        self._report(test, err)

    def addFailure(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        self._report(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: _ExcInfo | None) -> None:
        if err is not None:
            self._report(subtest, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.has_reported = True
        self._reporter.skipped(reason)

    def _report(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        self.has_reported = True
        assert err[1] is not None
        # unittest's own text: without its frames, and with the values of a sub-test.
        text: str = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]  # not in typeshed
        self._reporter.ended_by(err[1], text)
