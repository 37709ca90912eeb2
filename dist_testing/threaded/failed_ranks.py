"""What a class of thread ranks sees of the ranks that did not pass: pairs of a rank and an exception, as in torch."""

from __future__ import annotations

import traceback
import unittest
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.skips import skip_for_exit_code

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class FailedRanks(list[tuple[int, ExcInfo]]):
    """The ranks that did not pass, each with the `sys.exc_info()` of its exception.

    Attributes:
        result: The result of the case.
    """

    def __init__(self, result: CaseResult, errors: Iterable[tuple[int, BaseException]]) -> None:
        """Make the list.

        Args:
            result: The result of the case.
            errors: The exceptions of the ranks, in the order in which they were raised.
        """
        raised = list(errors)
        known = {rank for rank, _ in raised}
        # A rank that runs on, or that could not be started, has no exception.
        raised += [
            (outcome.rank, _stand_in(outcome))
            for outcome in result.outcomes
            if outcome.kind is not Kind.PASSED and outcome.rank not in known
        ]
        super().__init__((rank, (type(error), error, error.__traceback__)) for rank, error in raised)
        self.result = result
        self._first = list(self)

    @property
    def is_changed(self) -> bool:
        """Whether the class has changed the list since it was made."""
        return self._first != self


def _stand_in(outcome: RankOutcome) -> BaseException:
    if outcome.kind is Kind.SKIPPED:
        return unittest.SkipTest(outcome.reason)
    if outcome.kind in (Kind.HUNG, Kind.STOPPED):
        return TimeoutError(f"rank {outcome.rank} {outcome.describe()}")
    return RuntimeError(f"rank {outcome.rank} {outcome.describe()}")


def check_entries(failed_ranks: Sequence[tuple[int, Any]], timeout: float) -> None:
    """Judge a list that a class has made itself, or changed: a failure counts more than a skip.

    Args:
        failed_ranks: Pairs of a rank and a `sys.exc_info()`.
        timeout: Limit of the test in seconds.

    Raises:
        RuntimeError: If a rank failed, or did not end in time.
        unittest.SkipTest: If ranks have skipped, and none failed.
    """
    texts, skips = [], []
    for rank, (_, error, _) in failed_ranks:
        if isinstance(error, unittest.SkipTest):
            skips.append(str(error))
        elif isinstance(error, SystemExit) and isinstance(error.code, int) and (skip := skip_for_exit_code(error.code)):
            skips.append(skip.message)
        elif isinstance(error, TimeoutError):
            texts.append(f"Rank {rank} did not end within {timeout:g} s: {error}")
        elif not isinstance(error, SystemExit) or error.code:
            text = "".join(traceback.format_exception(error))
            texts.append(f"Rank {rank} ended by an exception:\n{text}")
    if texts:
        raise RuntimeError("\n".join(texts))
    if skips:
        raise unittest.SkipTest(skips[0])
