"""Unittest classes: where ranks find them, and how they are made."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.support.children import run_cases
from tests.support.starter import Starter


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_classes_are_found_wherever_they_were_created(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, nested classes, and classes that suites make with `type()`, are not found on ranks."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import dist_testing

        class Outer:
            class TestNested(dist_testing.MultiProcessTestCase):
                world_size = 2

                def test_nested(self):
                    self.assertIn(self.rank, range(2))

        TestNested = Outer.TestNested

        def make(number):
            class TestMade(dist_testing.MultiProcessTestCase):
                world_size = 2

                def test_made(self):
                    self.assertEqual(self.number, number)

            TestMade.number = number
            return TestMade

        TestFirst, TestSecond = make(1), make(2)

        def check(self):
            self.assertEqual(self.device, "planted")

        TestTyped = type(
            "TestOfType",
            (dist_testing.MultiProcessTestCase,),
            {"world_size": 2, "device": "planted", "test_typed": check, "test_typed_x_1__y_None_float32": check},
        )
        """,
        f"--dist-isolation={isolation}",
    )
    assert ended.code == 0, ended.log
    assert "5 passed" in ended.log


def test_class_that_a_rank_cannot_find_is_a_clear_error(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a class made while tests run, unknown to the fork server, gives no clear error."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import unittest

        import dist_testing

        class TestMaker(dist_testing.MultiProcessTestCase):
            world_size = 1

            def test_first(self):
                pass

        class TestRunsAnother(unittest.TestCase):
            def test_it(self):
                class TestLate(dist_testing.MultiProcessTestCase):
                    world_size = 1

                    def test_late(self):
                        pass

                result = unittest.TestResult()
                TestLate("test_late").run(result)
                (_, text), = result.failures
                self.assertIn("TestLate does not exist on the rank", text)
        """,
    )
    assert ended.outcomes() == {"test_first": "PASSED", "test_it": "PASSED"}, ended.log


def test_constructor_accepts_both_names_of_its_argument() -> None:
    """If this fails, unittest's loader, torch's helpers or tools cannot create instances in their own way."""
    from dist_testing import MultiProcessTestCase

    class Case(MultiProcessTestCase):
        def test_it(self) -> None:
            """Never called."""

    for case in (Case("test_it"), Case(methodName="test_it"), Case(method_name="test_it")):
        assert case._testMethodName == "test_it"
        assert case._current_test_name() == "test_it"
        assert case.test_it.__wrapped__ == Case.test_it.__get__(case)  # type: ignore[attr-defined]
        assert (case.rank, case.is_master, case.world_size) == (-1, False, 4)
    assert Case().id().endswith("runTest")
    with pytest.raises(ValueError, match=r"no such test method in <class '.*Case'>: test_missing"):
        Case("test_missing")


def test_a_mistyped_world_size_is_told() -> None:
    """If this fails, a class with `worldsize = 2` has four ranks, and nothing says why."""
    from dist_testing import MultiProcessTestCase

    class Mistyped(MultiProcessTestCase):
        worldsize = 2

    class Sized(Mistyped):
        world_size = 2

    with pytest.warns(RuntimeWarning, match=r"Did you mean world_size\?"):
        Mistyped()._check_members()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sized()._check_members()


def test_a_plain_test_can_run_a_class_of_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a project cannot test its own base classes: pytest has not collected the class."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import unittest

        import dist_testing

        def test_outer():
            class Inner(dist_testing.MultiProcessTestCase):
                world_size = 2

                def test_passes(self):
                    pass

                def test_fails(self):
                    raise ValueError("planted")

            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(Inner).run(result)
            assert result.testsRun == 2 and not result.errors
            ((_, text),) = result.failures
            assert "raised ValueError: planted in call" in text
        """,
    )
    assert ended.outcomes() == {"test_outer": "PASSED"}, ended.log
