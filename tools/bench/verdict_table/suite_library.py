"""The ordered case, in the library's class or on its worker pool."""

from __future__ import annotations

import pytest

import dist_testing
from verdict_table.bodies import limit_s, ordered_case, run_case, run_next, run_process_case

if ordered_case().is_continuous:

    @pytest.mark.distributed(world_size=ordered_case().world_size, timeout=limit_s(), isolation="pool")
    class TestPool:
        """Uses the same ranks and group for the tests of a class."""

        def test_1_case(self, world: dist_testing.World) -> None:
            """The fault."""
            run_case(world.rank)

        def test_2_next(self, world: dist_testing.World) -> None:
            """Passes."""
            run_next()

else:

    class ProcessTest(dist_testing.MultiProcessTestCase):
        """Used like torch's class."""

        world_size = ordered_case().world_size
        case_timeout_s = limit_s()

        def test_1_case(self) -> None:
            """The fault."""
            run_process_case(self)


if __name__ == "__main__":
    dist_testing.run_tests()
