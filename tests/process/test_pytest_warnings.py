"""Warnings on ranks: shown, filtered and turned into errors as anywhere in pytest."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases
from tests.support.starter import Starter

_SOURCE = """
    import unittest
    import warnings
    import pytest
    import dist_testing

    class OwnWarning(UserWarning):
        pass

    @pytest.mark.distributed(world_size=3)
    def test_all_warn(world):
        for _ in range(5):
            warnings.warn("of all of them")

    @pytest.mark.distributed(world_size=3)
    def test_one_warns(world):
        if world.rank == 1:
            warnings.warn("of one of them", OwnWarning)

    @pytest.mark.distributed(world_size=2)
    @pytest.mark.filterwarnings("ignore:hidden text")
    def test_filtered(world):
        warnings.warn("hidden text this")

    @pytest.mark.distributed(world_size=2)
    @pytest.mark.filterwarnings("error:an error here")
    def test_error(world):
        if world.rank == 1:
            warnings.warn("an error here")

    class UnittestTest(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_warns(self):
            warnings.warn("of a method")

        @pytest.mark.filterwarnings("ignore:hidden text")
        def test_filtered_method(self):
            warnings.warn("hidden text this")

        @pytest.mark.filterwarnings("error:refused here")
        def test_error_in_method(self):
            warnings.warn("refused here")

        def test_allows_warns(self):
            warnings.simplefilter("always")
            warnings.warn("allowed by the test")

        def test_allows_warns_and_fails(self):
            self.test_allows_warns()
            raise ValueError("the verdict")
"""


def test_warnings_of_ranks_are_in_the_summary(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the same warning of four ranks hides all others, or no rank is named."""
    ended = run_cases(starter, tmp_path, _SOURCE)
    ended.check(
        passed="test_all_warn test_one_warns test_filtered test_warns test_filtered_method test_allows_warns",
        failed="test_error test_error_in_method test_allows_warns_and_fails",
    )
    summary = ended.log[ended.log.index("warnings summary") :]
    assert "UserWarning: of all of them [ranks 0, 1, 2]" in summary
    assert summary.count("of all of them [") == 1
    assert "OwnWarning: of one of them [rank 1]" in summary
    assert "UserWarning: of a method [ranks 0, 1]" in summary
    assert "test_cases.py::test_one_warns\n" in summary
    assert "hidden text" not in summary
    assert "rank 1 raised UserWarning: an error here in call" in ended.log
    assert "raised UserWarning: refused here in call" in ended.log


def test_warnings_can_be_errors(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `-W` holds in the runner but not on ranks, or a warning hides a verdict."""
    ended = run_cases(starter, tmp_path, _SOURCE, "-W", "error", "-k", "all_warn or filtered or warns")
    # A test may allow what the session refuses.
    ended.check(
        failed="test_all_warn test_one_warns test_warns test_allows_warns_and_fails",
        passed="test_filtered test_filtered_method test_allows_warns",
    )
    assert "raised UserWarning: of all of them in call" in ended.log
    assert "UserWarning: allowed by the test [ranks 0, 1]" in ended.log
    assert "raised ValueError: the verdict in call" in ended.log


def test_a_warning_of_the_collection_does_not_disturb_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test file that warns while it is imported has no ranks that are fresh interpreters."""
    source = """
        import warnings
        import pytest

        warnings.warn("while it is imported")

        @pytest.mark.distributed(world_size=2)
        @pytest.mark.parametrize("number", range(2))
        def test_passes(world, number):
            warnings.warn("in the test")
    """
    ended = run_cases(starter, tmp_path, source, "--dist-isolation=spawn")
    assert set(ended.outcomes().values()) == {"PASSED"}, ended.log
    assert "in the test [ranks 0, 1]" in ended.log
