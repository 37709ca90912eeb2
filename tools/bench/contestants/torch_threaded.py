"""torch's `MultiThreadedTestCase`: ranks are threads, and a stand-in replaces the group."""

from __future__ import annotations

from torch.testing._internal.common_distributed import MultiThreadedTestCase

from contestants.torch_suite import add_cases, run_suite
from contestants.trivial import run_trivial
from contestants.turns import order


def _run(test: MultiThreadedTestCase, case: str) -> None:
    run_trivial(case, test.rank)


@add_cases(_run)
class ThreadedTest(MultiThreadedTestCase):
    """Used as in torch's own test files."""

    @property
    def world_size(self) -> int:
        """Ranks."""
        return order().world_size

    def setUp(self) -> None:
        """Runs in the main thread."""
        super().setUp()
        self._spawn_threads()  # type: ignore[no-untyped-call]  # torch's


if __name__ == "__main__":
    run_suite(ThreadedTest)
