"""`--test_filter`: test names as users copy them, and pytest's expressions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.children import Bazel, Target
from tests.support.starter import Starter

_CASES = """
    import unittest
    import pytest

    def test_one(): ...

    def test_one_more(): ...

    @pytest.mark.parametrize("value", ["a b", "c::d", "(e)"])
    def test_with(value): ...

    class PlainTest(unittest.TestCase):
        def test_one(self): ...

        def test_two(self): ...
"""


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [
        ("test_one_more", ["test_one_more"]),
        # A name alone means that name in any class, and not all names that begin with it.
        ("test_one", ["test_one", "PlainTest.test_one"]),
        ("PlainTest.test_one", ["PlainTest.test_one"]),
        ("PlainTest", ["PlainTest.test_one", "PlainTest.test_two"]),
        ("pkg.test_cases.PlainTest.test_two", ["PlainTest.test_two"]),
        ("pkg/test_cases.py::test_one", ["test_one"]),
        ("test_with", ["test_with[a b]", "test_with[c::d]", "test_with[(e)]"]),
        ("test_with[c::d]", ["test_with[c::d]"]),
        ("test_with[(e)]", ["test_with[(e)]"]),
        # pytest's expressions.
        ("one_mo or two", ["test_one_more", "PlainTest.test_two"]),
    ],
)
def test_filter_runs_the_cases_that_it_names(bazel: Bazel, wanted: str, ran: list[str]) -> None:
    """If this fails, a filter copied from a report runs other cases or none, and a failure looks repaired."""
    target, _ = bazel.run(_CASES, env={"TESTBRIDGE_TEST_ONLY": wanted})
    assert [name.removeprefix("pkg.test_cases.") for name in target.xml_keys()] == ran


def test_filter_is_added_to_the_targets_own_selection(bazel: Bazel) -> None:
    """If this fails, a filter runs cases that the BUILD file's `args` leave out, or `args` replace the filter."""
    target, _ = bazel.run(_CASES, "-k", "not two", env={"TESTBRIDGE_TEST_ONLY": "one_more or two"})
    assert target.xml_keys() == ["pkg.test_cases.test_one_more"]


def test_filter_that_is_not_an_expression_is_an_error(bazel: Bazel) -> None:
    """If this fails, an invalid expression passes like a filter that matches nothing."""
    _, ended = bazel.run(_CASES, code=pytest.ExitCode.USAGE_ERROR, env={"TESTBRIDGE_TEST_ONLY": "test_one and ("})
    lines = ended.log.splitlines()
    (position,) = (number for number, line in enumerate(lines) if line.startswith("ERROR: "))
    error, cause, way_out = lines[position : position + 3]
    assert error.startswith("ERROR: --test_filter: test_one and (: at column ")
    assert cause == "It names no case of //pkg:cases_gloo, and pytest cannot parse it as an expression."
    assert way_out == "Write a name as reports do, or parts of names joined by `and`, `or` and `not`."
    assert "Traceback" not in ended.log


def test_command_of_a_report_runs_only_that_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the command copied from a report passes, because it runs another case or none."""
    source = """
        import pytest

        class TestOne:
            @pytest.mark.distributed(world_size=1)
            @pytest.mark.parametrize("value", ["c::d"])
            def test_fails(self, world, value):
                raise ValueError("planted")

        class TestOther:
            def test_fails(self): ...
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter)
    (command,) = re.findall(r"^This case alone: (.*)$", ended.log, re.MULTILINE)
    wanted = shlex.split(command)[-1].removeprefix("--test_filter=")
    ended = target.run(starter, env={"TESTBRIDGE_TEST_ONLY": wanted})
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert target.xml_keys() == ["pkg.test_cases.TestOne.test_fails[c::d]"]
