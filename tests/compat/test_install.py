"""torch-style test files, unchanged, with this library installed in torch's place in every supported way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dist_testing.compat import is_tested
from tests.compat.files import outcomes, run_file
from tests.support.children import run_pytest, write_file
from tests.support.starter import LIMIT_S, Starter

# A file as torch's users write it: nothing in it refers to this library.
_FILE = """
    import os
    import sys

    import torch
    import torch.distributed as c10d
    from torch.testing._internal.common_distributed import (
        MultiProcessTestCase, MultiThreadedTestCase, TEST_SKIPS, requires_gloo, skip_if_lt_x_gpu,
        spawn_threads_and_init_comms,
    )
    from torch.testing._internal.common_utils import TestCase, run_tests


    class ProcessTest(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            os.environ["SET_IN_SETUP"] = "yes"
            self._spawn_processes()

        def tearDown(self):
            super().tearDown()
            try:
                os.remove(self.file_name)
            except OSError:
                pass

        @requires_gloo()
        def test_pass(self):
            self.assertEqual(os.environ["SET_IN_SETUP"], "yes")
            self.assertNotIn("LOCAL_RANK", os.environ)
            store = c10d.FileStore(self.file_name, self.world_size)
            c10d.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
            value = torch.full((2,), float(self.rank))
            c10d.all_reduce(value)
            self.assertEqual(value, torch.ones(2))

        def test_fail(self):
            self.assertEqual(self.rank, 0)

        def test_exit_0(self):
            sys.exit(0)

        def test_exit_code_of_a_skip(self):
            sys.exit(TEST_SKIPS["odd_worldsize"].exit_code)

        @skip_if_lt_x_gpu(99)
        def test_gpus(self):
            raise AssertionError("no rank was to be started")


    class ThreadTest(MultiThreadedTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_threads(self):
            value = torch.full((2,), float(self.rank))
            c10d.all_reduce(value)
            self.assertEqualOnRank(value, torch.ones(2))


    class WrappedTest(TestCase):
        @spawn_threads_and_init_comms(world_size=2)
        def test_wrapped(self):
            self.assertEqual(c10d.get_world_size(), 2)


    if __name__ == "__main__":
        run_tests()
"""
_EXPECTED = {
    **dict.fromkeys(("test_pass", "test_exit_0", "test_threads", "test_wrapped"), "PASSED"),
    **dict.fromkeys(("test_exit_code_of_a_skip", "test_gpus"), "SKIPPED"),
    "test_fail": "FAILED",
}


def test_a_file_runs_unchanged_as_a_program(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a team must edit hundreds of files before it can migrate."""
    ended = run_file(starter, tmp_path, _FILE, "-v")
    assert outcomes(ended.log) == _EXPECTED, ended.log
    assert ended.code == 1
    assert "(world of 2): rank 1 raised AssertionError" in ended.log
    assert "skipped 'Need at least 99 CUDA devices'" in ended.log
    (command,) = set(re.findall(r"^This case alone: (.*)$", ended.log, re.MULTILINE))
    assert command == "python -m dist_testing.compat test_file.py ProcessTest.test_fail"


def test_a_file_runs_unchanged_under_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, teams that run pytest, as most do, cannot migrate."""
    write_file(tmp_path, "test_file.py", _FILE)
    ended = run_pytest(starter, tmp_path, "-rA", "-p", "dist_testing.compat.pytest_install", "test_file.py")
    # pytest's summary does not name skipped tests.
    assert ended.outcomes() == {name: how for name, how in _EXPECTED.items() if how != "SKIPPED"}, ended.log
    assert "2 skipped" in ended.log
    assert ended.code == 1
    (command,) = set(re.findall(r"^This case alone: (.*)$", ended.log, re.MULTILINE))
    assert command.endswith(" -p dist_testing.compat.pytest_install test_file.py::ProcessTest::test_fail"), (
        "without the plugin torch's own class would run"
    )


def test_a_conftest_can_install_it_too(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a whole folder of tests cannot be migrated with one line."""
    write_file(tmp_path, "test_file.py", _FILE)
    write_file(tmp_path, "conftest.py", "import dist_testing.compat\n\ndist_testing.compat.install()\n")
    ended = run_pytest(starter, tmp_path, "-rA", "test_file.py", "-k", "test_exit_0 or test_threads")
    assert ended.outcomes() == {"test_exit_0": "PASSED", "test_threads": "PASSED"}, ended.log


def test_ranks_that_are_fresh_interpreters_have_it_installed(starter: Starter, tmp_path: Path) -> None:
    """If this fails, fresh ranks import the file on torch's own classes, which start ranks of ranks."""
    source = _FILE.replace("return 2", "return 2\n\n        isolation = 'spawn'", 1)
    # Eight interpreters load torch and its test library, two at a time. A CUDA build takes several times as long.
    ended = run_file(starter, tmp_path, source, "-v", "ProcessTest", limit_s=4 * LIMIT_S)
    assert outcomes(ended.log) == {name: _EXPECTED[name] for name in outcomes(ended.log)}, ended.log
    assert len(outcomes(ended.log)) == 5


def test_the_fork_server_of_an_unclean_runner_has_it_installed(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a module that starts a thread at import breaks the migration of its file.

    A program gets its arguments, and gives its exit code.
    """
    source = _FILE.replace(
        "import sys\n", "import sys\n    import threading\n    threading.Thread(target=input, daemon=True).start()\n", 1
    ).replace("target=input", "target=threading.Event().wait")
    ended = run_file(starter, tmp_path, source, "-v", "ProcessTest.test_pass", "ProcessTest.test_exit_0")
    assert (ended.code, outcomes(ended.log)) == (0, {"test_pass": "PASSED", "test_exit_0": "PASSED"}), ended.log


_ORDER = """
    import sys
    import warnings

    {before}
    import dist_testing.compat

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist_testing.compat.install()
        dist_testing.compat.install()
    for warning in caught:
        print("warned:", *str(warning.message).splitlines(), sep="|")

    import dist_testing.compat.common_distributed as ours
    import torch.testing._internal.common_distributed as by_path
    from torch.testing._internal import common_distributed as by_name
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

    print(by_path is ours, by_name is ours, MultiProcessTestCase is ours.MultiProcessTestCase)
    print("dtensor:", issubclass(DTensorTestBase, ours.MultiProcessTestCase))
    print("installed:", dist_testing.compat.is_installed())
"""


@pytest.mark.parametrize(
    ("before", "warned"),
    [
        ("", None),
        # No module has imported a name from it.
        ("import torch.testing._internal.common_distributed", None),
        (
            "from torch.testing._internal.common_distributed import MultiProcessTestCase as Theirs",
            "in use before dist_testing.compat.install(): __main__ keep torch's.",
        ),
    ],
)
def test_it_can_be_installed_before_and_after_torchs_own_was_imported(
    starter: Starter, tmp_path: Path, before: str, warned: str | None
) -> None:
    """If this fails, part of the tests silently run on torch's classes, because their names were imported before."""
    write_file(tmp_path, "order.py", _ORDER.format(before=before))
    child = starter.start(["order.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert "True True True\ndtensor: True\ninstalled: True\n" in child.log
    lines = [line for line in child.log.splitlines() if line.startswith("warned:")]
    # An untested torch has a warning of its own, also with two installs.
    if not is_tested(str(torch.__version__)):
        assert "dist_testing is tested with torch" in lines.pop(0)
    if warned is None:
        assert lines == []
    else:
        assert len(lines) == 1
        assert warned in lines[0]
        assert lines[0].count("|") == 3


def test_the_fake_backend_is_registered(starter: Starter, tmp_path: Path) -> None:
    """If this fails, files that use the backend without its module, as torch's own do, fail with "unknown backend"."""
    program = "import dist_testing.compat as c; c.install(); import torch.distributed as d; print(d.Backend._plugins)"
    # A fresh interpreter: the starter has imported it.
    child = starter.start(["-c", program], tmp_path, fresh=True)
    assert child.wait() == 0, child.log
    assert "'FAKE'" in child.log


def test_a_command_line_without_a_file_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the user gets a traceback of the library instead of the mistyped argument, or of `--help`."""
    for argument, message in (
        ("", "expected a test file; got none."),
        ("-v", "got '-v' in its place"),
        ("no.py", "no.py: no such file."),
    ):
        child = starter.start(["-m", "dist_testing.compat", *argument.split()], tmp_path)
        assert child.wait() == 2
        assert message in child.log
        assert len(child.log.splitlines()) == 3
    child = starter.start(["-m", "dist_testing.compat", "--help"], tmp_path)
    assert child.wait() == 0
    assert child.log.startswith("usage: python -m dist_testing.compat FILE [ARGUMENTS]\n")
    assert "run a torch-style test file, unchanged" in child.log


def test_a_file_that_runs_no_test_is_an_error(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a file without `run_tests()` at its end passes in CI although none of its tests ran."""
    # What a test calls runs no tests, and no name such as RuntimeError does.
    source = _FILE.replace("super().setUp()", "super().setUp(), self.run_subtests()", 1)
    ended = run_file(starter, tmp_path, source.replace("        run_tests()", "        RuntimeError('run_tests()')"))
    assert ended.code == 1
    assert "NOTHING RAN: test_file.py calls neither run_tests() nor unittest.main()." in ended.log
    # A build of torch with CUDA says so on a machine without a GPU.
    lines = [line for line in ended.log.splitlines() if "No CUDA runtime is found" not in line]
    assert len(lines) == 3, ended.log
    # It goes on, as in plain Python.
    ended = run_file(starter, tmp_path, "import unittest\n\nunittest.main(exit=False)\n")
    assert ended.code == 0, ended.log


@pytest.mark.parametrize(
    "start", [("-m", "dist_testing.compat"), ("-m", "pytest", "-p", "dist_testing.compat.pytest_install")]
)
def test_packages_that_torchs_testcase_needs_are_named(
    starter: Starter, tmp_path: Path, start: tuple[str, ...]
) -> None:
    """If this fails, the user must find in a deep traceback which package torch's TestCase needs."""
    write_file(tmp_path, "expecttest.py", "raise ImportError(\"No module named 'expecttest'\")\n")
    write_file(tmp_path, "test_file.py", _FILE)
    child = starter.start([*start, "test_file.py"], tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert child.wait() != 0
    assert "needs the packages expecttest and numpy" in child.log
    assert "under Bazel, add them to the target's deps" in child.log
    assert "Traceback" not in child.log
