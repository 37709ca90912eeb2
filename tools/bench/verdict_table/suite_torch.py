"""The ordered case, in torch's own classes."""

from __future__ import annotations

import contextlib
import os
import unittest
from datetime import timedelta

from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

from verdict_table.bodies import GROUP_LIMIT_FACTOR, limit_s, ordered_case, run_case, run_next, run_process_case

if ordered_case().is_continuous:

    class ContinuousTest(MultiProcContinuousTest):
        """Used as in torch's own test files."""

        world_size = ordered_case().world_size
        timeout = timedelta(seconds=GROUP_LIMIT_FACTOR * limit_s())

        @classmethod
        def backend_str(cls) -> str:
            """The backend of the group that the class makes."""
            return "gloo"

        @classmethod
        def device_type(cls) -> str:
            """The device of the tensors."""
            return "cpu"

        def test_1_case(self) -> None:
            """The fault."""
            run_case(self.rank)

        def test_2_next(self) -> None:
            """Passes."""
            run_next()

else:

    class ProcessTest(MultiProcessTestCase):
        """Used as in torch's own test files."""

        @property
        def world_size(self) -> int:
            """Ranks."""
            return ordered_case().world_size

        def setUp(self) -> None:
            """Runs in the parent."""
            super().setUp()
            self._spawn_processes()

        def tearDown(self) -> None:
            """Runs in the parent. Most of torch's own classes remove the file themselves."""
            super().tearDown()
            with contextlib.suppress(OSError):
                os.remove(self.file_name)

        def test_1_case(self) -> None:
            """The fault."""
            run_process_case(self)


if __name__ == "__main__":
    unittest.main(verbosity=2)
