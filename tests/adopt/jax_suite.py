"""A suite in the style of JAX's multi-process tests. With `stand_in` in PYTHONPATH it runs without JAX."""

# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import os
import unittest
from typing import Any, ClassVar

import jax
import pytest
from absl import flags
from jax._src import test_multiprocess as jt_multiprocess
from jax._src.test_multiprocess import MultiProcessTest


class WorldTest(jt_multiprocess.MultiProcessTest):
    seen: ClassVar[list[str]] = []

    def test_a_world(self) -> None:
        assert jax.process_count() == 2
        assert flags.FLAGS.values["multiprocess_test_worker_id"] == str(jax.process_index())
        assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
        self.seen.append("tests of a file share their processes")

    def test_b_flags(self) -> None:
        assert self.seen
        assert flags.FLAGS.values["seed"] == "7"
        assert jax.config.visible_devices == str(jax.process_index())

    def test_c_fails(self) -> None:
        assert jax.process_index() != 1, "planted"

    def test_d_error_in_a_sub_test(self) -> None:
        with self.subTest(part=1):
            raise ValueError("in a part")

    def test_e_skips(self) -> None:
        self.skipTest("no such device")

    def test_f_skips_on_one_rank(self) -> None:
        if jax.process_index() == 1:
            self.skipTest("only here")

    @unittest.expectedFailure
    def test_g_expected(self) -> None:
        raise AssertionError

    @pytest.mark.skip(reason="by a mark of pytest")
    def test_g_marked(self) -> None:
        raise AssertionError

    def test_h_after(self) -> None:
        jax.wait_at_barrier("after")


class BrokenClassTest(MultiProcessTest):
    @classmethod
    def setUpClass(cls) -> None:
        raise ValueError("setup of the class")

    def test_never_runs(self) -> None:
        raise AssertionError


class BrokenEndTest(MultiProcessTest):
    @classmethod
    def tearDownClass(cls) -> None:
        raise ValueError("teardown of the class")

    def test_runs(self) -> None:
        pass


class DyingTest(MultiProcessTest):
    def test_a_dies(self) -> None:
        if jax.process_index() == 1:
            os.kill(os.getpid(), 9)
        jax.wait_at_barrier("never")

    def test_b_later(self) -> None:
        pass


class TestPlain:
    def test_not_on_ranks(self, tmp_path: Any) -> None:
        assert tmp_path.exists()
