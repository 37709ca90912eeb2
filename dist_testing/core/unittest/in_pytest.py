"""The unittest front end on a rank of a pytest session."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.pytest.pytest_rank import run_as_test
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.unittest_messages import UNITTEST_CASES
from dist_testing.core.unittest.unittest_rank import UnittestRankFrontEnd


class UnittestInPytest(UnittestRankFrontEnd):
    """Runs methods of a `WorldCase` with the settings of the session: its warnings and its assertion texts."""

    def __init__(self, config: pytest.Config, items: Mapping[str, pytest.Item]) -> None:
        super().__init__(shows_locals=bool(config.option.showlocals))
        self._items = items

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run a method, with pytest's warnings."""
        case = UNITTEST_CASES.from_wire(body.content)
        cls = case.cls.find()
        run = functools.partial(super().run, body, reporter)
        for item in self._items.values():
            if item.name == case.method and getattr(item, "cls", None) is cls:
                run_as_test(item, reporter, run)
                return
        # A test may also run, by unittest, a class that pytest has not collected.
        run()
