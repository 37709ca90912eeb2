"""What a plug-in of a session may bring to run on ranks in place of tests, such as a script."""

from __future__ import annotations

import abc
from collections.abc import Callable

import pytest

from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.spec import Spec
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.rank.bootstrap import RankContext

# What the target or the command line asks for.
RUN_SPEC_KEY = pytest.StashKey[Spec]()
# Set by a plug-in whose items need no pytest on the ranks: the rank context of the session, and its loader.
RANK_SIDE_KEY = pytest.StashKey[tuple[RankContext, Loader]]()
# Runs an item on ranks, and raises what pytest is to report.
RUN_KEY = pytest.StashKey[Callable[[pytest.Item], None]]()


class RankItem(pytest.Item, abc.ABC):
    """An item that is no test function. A front end of its own runs it on ranks.

    Who makes one sets `CASE_KEY` in its stash, and `RANK_SIDE_KEY` in that of the session's config.
    """

    def runtest(self) -> None:
        """Run it on ranks."""
        self.config.stash[RUN_KEY](self)

    @abc.abstractmethod
    def command(self, result: CaseResult, spec: Spec) -> str:
        """Return the command that repeats a result outside Bazel."""
