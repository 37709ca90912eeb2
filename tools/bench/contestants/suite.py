"""Runs a class under plain unittest, taking turns."""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from contestants.turns import order, turns

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
_Class = TypeVar("_Class", bound=type[Any])


def add_cases(run: Callable[[Any, str], None]) -> Callable[[_Class], _Class]:
    """Return a decorator that gives a class one test method per case of the order; each calls `run(self, case)`."""

    def decorate(cls: _Class) -> _Class:
        for number, case in enumerate(order().cases):

            def method(self: Any, case: str = case) -> None:
                run(self, case)

            setattr(cls, _method_name(number), method)
        return cls

    return decorate


def _method_name(number: int) -> str:
    # Not the case's name: torch's classes split names at dots.
    return f"test_{number}"


class _Result(unittest.TestResult):
    """Takes a turn for each test, and reports its verdict as soon as it is known."""

    def __init__(self) -> None:
        super().__init__()
        self._cases = iter(order().cases)
        self._turn = contextlib.ExitStack()

    def startTest(self, test: unittest.TestCase) -> None:
        self._turn.enter_context(turns().case(next(self._cases)))
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._turn.close()

    def addSuccess(self, test: unittest.TestCase) -> None:
        turns().tell("verdict", passed=True, text="")

    def addError(self, test: unittest.TestCase, err: _ExcInfo) -> None:
        turns().tell("verdict", passed=False, text=str(err[1]))

    addFailure = addError

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        turns().tell("verdict", passed=False, text=f"skipped: {reason}")


def run_suite(cls: type[unittest.TestCase]) -> None:
    """Run the cases of the order, with the methods of `add_cases`."""
    turns().tell("imported")
    suite = unittest.TestSuite(cls(_method_name(number)) for number in range(len(order().cases)))
    suite.run(_Result())
