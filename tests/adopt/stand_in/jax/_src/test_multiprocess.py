"""JAX's base class of multi-process tests: all processes begin and end each test together."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import unittest

from absl import flags

import jax


class MultiProcessTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        assert jax.process_count() == int(flags.FLAGS.values["num_processes"])
        jax.wait_at_barrier(f"{self._testMethodName}_start")

    def tearDown(self) -> None:
        jax.wait_at_barrier(f"{self._testMethodName}_end")
        super().tearDown()
