"""Options of a unittest file, in each way to run one: right tests, right exit code."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

import pytest

from dist_testing.core.ground.errors import UsageError
from tests.support.children import assert_no_folder_left, write_file
from tests.support.starter import Starter

_CASES = """
    import unittest
    import dist_testing

    class TestFirst(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_a_pass(self):
            self.assertIn(self.rank, range(2))

        def test_b_fail(self):
            planted_local = 40 + 2
            self.assertEqual(self.rank, 0, "planted")

    class TestSecond(dist_testing.MultiProcessTestCase):
        world_size = 2
        isolation = "spawn"

        def test_c_pass(self):
            self.assertEqual(type(self).__name__, "TestSecond")
"""
_UNITTEST = "unittest.main()"
_OURS = "dist_testing.run_tests()"


@pytest.mark.parametrize(
    ("ending", "options", "code", "said"),
    [
        (_UNITTEST, [], 1, "Ran 3 tests"),
        (_UNITTEST, ["-v", "TestFirst.test_a_pass"], 0, "Ran 1 test"),
        (_UNITTEST, ["-f"], 1, "Ran 2 tests"),
        (_UNITTEST, ["--locals", "TestFirst"], 1, "planted_local = 42"),
        (_UNITTEST, ["TestFirst.test_missing"], 1, "has no attribute 'test_missing'"),
        (_OURS, [], 1, "1 failed, 2 passed"),
        (_OURS, ["-v", "TestFirst.test_a_pass"], 0, "1 passed"),
        (_OURS, ["-k", "pass"], 0, "2 passed, 1 deselected"),
        (_OURS, ["-f", "TestFirst"], 1, "1 failed, 1 passed"),
        (_OURS, ["--failfast", "--locals", "TestFirst.test_b_fail"], 1, "planted_local = 42"),
        (_OURS, ["-v", "TestFirst.test_missing"], 4, "not found"),
        # Editors and CI jobs call `python -m unittest`.
        ("", ["test_cases.TestFirst.test_a_pass"], 0, "Ran 1 test"),
        ("", ["-f", "test_cases.TestFirst", "test_cases.TestSecond"], 1, "Ran 2 tests"),
        ("", ["-k", "test_?_pass", "test_cases"], 0, "Ran 2 tests"),
        ("", ["discover", "-p", "test_cases.py", "-k", "a_pass"], 0, "Ran 1 test"),
        ("", ["--locals", "test_cases.TestFirst.test_b_fail"], 1, "planted_local = 42"),
    ],
)
def test_program_takes_options(
    starter: Starter, tmp_path: Path, ending: str, options: list[str], code: int, said: str
) -> None:
    """If this fails, a user who runs a test file by hand cannot use an ordinary option."""
    main = f'\n\nif __name__ == "__main__":\n    {ending}\n' if ending else ""
    write_file(tmp_path, "test_cases.py", textwrap.dedent(_CASES) + main)
    child = starter.start([*(["test_cases.py"] if ending else ["-m", "unittest"]), *options], tmp_path)
    assert child.wait() == code, child.log
    assert said in child.log, child.log
    assert_no_folder_left(tmp_path)


def test_a_call_by_the_import_of_the_file_is_refused(tmp_path: Path) -> None:
    """If this fails, a file without `if __name__ == "__main__":` ends in a long traceback of pytest."""
    file = write_file(tmp_path, "test_cases.py", f"import dist_testing\n{_OURS}\n")
    with pytest.raises(UsageError, match=r"by the import of test_cases\."):
        runpy.run_path(str(file), run_name="test_cases")


def test_unittest_does_not_start_worlds_inside_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each process under torchrun runs all tests on a world of its own."""
    file = write_file(tmp_path, "test_cases.py", _CASES)
    file.write_text(f'{file.read_text()}\n\nif __name__ == "__main__":\n    {_UNITTEST}\n')
    rank_env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    child = starter.start(["test_cases.py", "TestFirst.test_a_pass"], tmp_path, env=rank_env)
    assert child.wait() == 1, child.log
    assert "TestFirst.test_a_pass: unittest runs in a process that is already rank 1 of 2 (RANK is set)." in child.log
    assert "Use pytest or dist_testing.run_tests(), which run on the existing ranks; or unset RANK." in child.log
    assert_no_folder_left(tmp_path)
