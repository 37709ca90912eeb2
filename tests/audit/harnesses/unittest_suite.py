"""A suite of unittest: one class with ranks, and one case without."""

from __future__ import annotations

import os
import tempfile
import unittest

from tests.audit.harnesses import unchecked_suite


class SuiteTest(unittest.TestCase):
    """Two cases."""

    def test_ranks(self) -> None:
        """Starts ranks, and checks nothing."""
        unchecked_suite.spawn_multiprocess_job(2, os.path.join(tempfile.mkdtemp(prefix="suite"), "f"))

    def test_idle(self) -> None:
        """Starts none."""


if __name__ == "__main__":
    unittest.main()
