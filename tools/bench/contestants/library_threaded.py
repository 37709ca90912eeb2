"""The library's `MultiThreadedTestCase`, used like torch's."""

from __future__ import annotations

from contestants.suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order
from dist_testing import MultiThreadedTestCase


def _run(test: MultiThreadedTestCase, case: str) -> None:
    run_trivial(case, test.rank)


@add_cases(_run)
class ThreadedTest(MultiThreadedTestCase):
    """The same class as torch's contestant, on another base class."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return order().world_size

    def setUp(self) -> None:
        """Runs in the main thread."""
        super().setUp()
        self._spawn_threads()


if __name__ == "__main__":
    run_suite(ThreadedTest)
