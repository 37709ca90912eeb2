"""The marker and the options: every valid form, and a clear error for every invalid one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.pytest import option_values
from tests.support.children import Ended, run_cases, run_pytest, write_file
from tests.support.starter import Starter


def _assert_clear(ended: Ended, *said: str) -> None:
    """Check that the reason is in the log, and none of the library's own code."""
    for text in said:
        assert text in ended.log, ended.log
    assert "Traceback" not in ended.log
    assert "dist_testing/" not in ended.log.replace("dist_testing/config", ""), ended.log


def test_marker_forms(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a form of the marker (function, class, module, sizes, groups) has another meaning.

    The session lacks the plugins of pytest that marked tests can do without.
    """
    source = """
        import pytest
        import torch
        import torch.distributed as dist

        pytestmark = pytest.mark.distributed(timeout=30)

        def test_default(world, world_size):
            assert world.size == world_size == dist.get_world_size() == 3
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 3

        @pytest.mark.distributed(world_size=1)
        def test_alone(world):
            assert (world.rank, world.size) == (0, 1)

        @pytest.mark.distributed(world_size=[1, 2])
        @pytest.mark.parametrize("letter", ["a", "b"])
        def test_sizes(world, world_size, letter):
            assert world.size == world_size

        @pytest.mark.distributed(init=False)
        def test_without_group(world):
            assert not dist.is_initialized()

        @pytest.mark.distributed(world_size=2, expected_exits={1: -9})
        def test_expected_exit(world):
            import os
            if world.rank == 1:
                os.kill(os.getpid(), 9)

        @pytest.mark.distributed(world_size=2)
        class TestClass:
            def test_inherits(self, world):
                assert world.size == 2

            @pytest.mark.distributed(world_size=1)
            def test_says_otherwise(self, world):
                assert world.size == 1

        class Base:
            def test_of_base(self, world):
                assert world.size == 1

        @pytest.mark.distributed(world_size=1)
        class TestDerived(pytest.mark.distributed(world_size=2)(Base)): ...

        @pytest.mark.distributed(backends=["nccl"])
        def test_elsewhere(world): ...

        @pytest.mark.distributed(backends=["gloo", "nccl"])
        def test_here(world):
            assert world.backend == "gloo"

        @pytest.mark.distributed(world_size=2)
        def test_without_the_fixture():
            assert dist.get_world_size() == 2
    """
    without = [f"-pno:{name}" for name in ("capture", "debugging", "logging", "skipping", "warnings")]
    ended = run_cases(starter, tmp_path, source, "--dist-world-size=3", *without)
    ended.check(
        log=["1 deselected"],
        passed="test_default test_alone test_without_group test_expected_exit test_inherits test_says_otherwise"
        " test_sizes[world_size=1-a] test_sizes[world_size=2-a] test_sizes[world_size=1-b] test_sizes[world_size=2-b]"
        " test_here test_without_the_fixture test_of_base",
    )


_HEAD = """
import unittest
import pytest
import dist_testing

marked = pytest.mark.distributed

"""
_FUNCTION = "\ndef test_marked(world): ..."
_METHOD = "):\n    def test_marked(self): ..."


def test_wrong_markers_are_refused_at_collection(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a mistake in a marker runs something else, or hides the mistakes in other files.

    tests/unit/test_marker.py has every wrong value.
    """
    wrong = {
        "@marked(4)": "positional arguments (4,).\nIt takes keyword arguments only.\nWrite world_size=4, for example.",
        "@marked(world_size=0)": "world_size = 0.\nIt is a number from 1 to 1024",
        "@marked(world_size=2)\n@marked(world_size=3)": "with world_size = 2 and 3, in two markers of one function.",
        "@marked\n@pytest.mark.parametrize('world, world_size', [(1, 2)])": "parametrize sets `world_size`",
        # Told when all files are collected.
        "@marked(world_size=4, nodes=3)": "nodes = 3 with world_size = 4.",
        "@marked(world_size=2, expected_exits={7: -9})": "expected_exits = {7: -9} in a world",
        "@marked\nclass Test(unittest.TestCase": "@pytest.mark.distributed on a method of a unittest class",
        "@marked\nclass Test(dist_testing.MultiProcessTestCase": "Take the marker off, also from the module",
    }
    for number, marks in enumerate(wrong):
        write_file(tmp_path, f"test_{number}.py", _HEAD + marks + (_METHOD if "class" in marks else _FUNCTION))
    ended = run_pytest(starter, tmp_path)
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    _assert_clear(ended)
    told = ended.log.split(" ERROR collecting test_")[1:]
    for number, (text, said) in enumerate(zip(told, wrong.values(), strict=True)):
        assert re.search(rf"test_{number}\.py::(Test::)?test_marked: ", text)
        assert said in text


def test_expected_exit_must_come_after_the_test_has_begun(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test of a fault passes although its body has never run."""
    source = """
        import os
        import sys
        import pytest

        @pytest.fixture
        def dies_in_setup(world):
            if world.rank == 1:
                os.kill(os.getpid(), 9)

        @pytest.fixture
        def leaves_in_setup(world):
            if world.rank == 1:
                sys.exit(3)

        @pytest.fixture
        def dies_in_teardown(world):
            yield
            if world.rank == 1:
                os.kill(os.getpid(), 9)

        @pytest.mark.distributed(world_size=2, expected_exits={1: -9})
        def test_setup(dies_in_setup): ...

        @pytest.mark.distributed(world_size=2, expected_exits={1: 3})
        def test_leaves(leaves_in_setup): ...

        @pytest.mark.distributed(world_size=2, expected_exits={1: -9})
        def test_teardown(dies_in_teardown): ...

        @pytest.mark.distributed(world_size=2, expected_exits={1: 3})
        def test_call(world):
            if world.rank == 1:
                sys.exit(3)
    """
    ended = run_cases(starter, tmp_path, source)
    said = "expected to end by SIGKILL (9), but it did so before the test began in setup"
    log = [said, "rank 1 exited with code 3 in setup"]
    ended.check(passed="test_teardown test_call", failed="test_setup test_leaves", log=log)


def test_only_marked_tests_have_the_fixtures_and_their_names_stay_free(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the most common mistakes give no clear error, or the plugin breaks a project's own `world`."""
    source = """
        import pytest

        marked = pytest.mark.distributed(world_size=2)

        @pytest.fixture
        def size(world):
            return world.size

        def test_unmarked(world): ...

        def test_unmarked_fixture(size): ...

        def test_unmarked_size(world_size): ...

        @pytest.mark.parametrize("world_size", [3], indirect=True)
        def test_given_size(world_size):
            assert world_size == 3

        @pytest.mark.parametrize("world_size", [8])
        def test_parametrized(world_size):
            assert world_size == 8

        class TestOwnSize:
            @pytest.fixture
            def world_size(self):
                return 7

            def test_plain_size(self, world_size):
                assert world_size == 7

            @marked
            def test_own_size(self, world, world_size): ...

        class TestOwnWorld:
            @pytest.fixture
            def world(self):
                return "hello"

            def test_plain_world(self, world):
                assert world == "hello"

            @marked
            def test_hidden_world(self, world):
                assert world == "hello"

        @marked
        class TestAdds:
            @pytest.fixture
            def world(self, world):
                return world.rank

            def test_adds(self, world):
                assert world in (0, 1)
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(
        passed="test_given_size[3] test_parametrized[8] test_plain_size test_plain_world test_hidden_world test_adds",
        error="test_unmarked test_unmarked_fixture test_unmarked_size",
        failed="test_own_size",
        log=[
            "test_unmarked uses the fixture `world` without the marker",
            "test_unmarked_fixture uses the fixture `world` without the marker",
            "test_unmarked_size uses the fixture `world_size` without the marker",
            "Mark it with @pytest.mark.distributed",
            "UsageError: There is a fixture `world_size` that is not the library's",
        ],
    )
    hidden = r"TestOwnWorld::test_hidden_world\n.*\n? *.*A fixture `world` of the project hides the library's"
    assert re.search(hidden, ended.log), ended.log
    assert ended.log.count("hides the library's") == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--dist-backend=glo", "Backend 'glo' is not declared.\nThe declared backends are cuda_gloo,"),
        ("--dist-world-size=0", "--dist-world-size=0: expected numbers from 1 to 1024"),
        ("--dist-timeout=abc", "--dist-timeout=abc: expected a number of seconds above 0"),
        ("--dist-isolation=nonsense", "--dist-isolation=nonsense: expected one of fork, spawn, pool"),
        ("--dist-debug-rank=-1", "--dist-debug-rank=-1: expected the number of a rank, from 0."),
        ("--dist-debug-rank=1024", "--dist-debug-rank=1024: expected the number of a rank"),
        ("--dist-debug-rank=0", "--dist-debug-rank=0: there is no terminal"),
        ("--dist-jobs=many", "--dist-jobs=many: expected a number from 1 to 64, or auto."),
        ("--dist-on-missing=maybe", "--dist-on-missing=maybe: expected one of skip, fail"),
    ],
)
def test_bad_option_is_a_usage_error(starter: Starter, tmp_path: Path, option: str, said: str) -> None:
    """If this fails, a wrong option is found only after tests are collected."""
    ended = run_cases(starter, tmp_path, _HEAD + "@marked" + _FUNCTION, option)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    _assert_clear(ended, said)


def test_a_session_without_the_terminal_plugin_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the fork server ends with an error that blames the library."""
    write_file(tmp_path, "test_cases.py", _HEAD + "@marked" + _FUNCTION)
    # Without the options of that plugin, which other tests have.
    plugins = ("-pno:terminal", "-pdist_testing.core.pytest.plugin", "--override-ini=addopts=")
    ended = run_pytest(starter, tmp_path, *plugins, "test_cases.py")
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    _assert_clear(ended, "-p no:terminal: the plugin terminalreporter of pytest is missing.")


@pytest.mark.parametrize("value", ["", "-1", "two", "1,,2", "2.0", "1025"])
def test_world_sizes_of_the_option_are_numbers(value: str) -> None:
    """If this fails, worlds of a size that nobody asked for are started, or none."""
    config = SimpleNamespace(getoption={"--dist-world-size": value}.get)
    with pytest.raises(UsageError, match=rf"--dist-world-size={value}: expected numbers from 1 to 1024"):
        option_values.read_spec(cast("Any", config), None, None)


def test_options_set_values_that_the_tests_leave_open(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an option (sizes, limit, backend) has no effect on tests that leave it open."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed
        def test_hangs(world):
            threading.Event().wait()
    """
    ended = run_cases(starter, tmp_path, source, "--dist-world-size=1,2", "--dist-timeout=0.5")
    ended.check(failed="test_hangs[world_size=1] test_hangs[world_size=2]", log=["in test_hangs"])

    nccl = ("--dist-backend=nccl", "--dist-world-size=2")
    ended = run_cases(starter, tmp_path, source, *nccl, CUDA_VISIBLE_DEVICES="")
    assert ended.code == 0
    assert "Need at least 2 CUDA devices (found 0; CUDA_VISIBLE_DEVICES='' hides every device)" in ended.log
    ended = run_cases(starter, tmp_path, source, *nccl, "--dist-on-missing=fail", CUDA_VISIBLE_DEVICES="")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert ": hardware missing: Need at least 2 CUDA devices" in ended.log


def test_a_session_in_a_test_ends_with_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, classes after a test that runs pytest in its process have no limit, or another backend."""
    inner = """
        import dist_testing

        class TestInner(dist_testing.MultiProcessTestCase):
            def test_it(self):
                assert self.world_size == 1
    """
    write_file(tmp_path, "inner.py", inner)
    source = """
        import pytest
        import dist_testing

        def test_session():
            assert pytest.main(["--dist-world-size=1", "inner.py"]) == 0

        class TestOuter(dist_testing.MultiProcessTestCase):
            def test_it(self):
                assert self.world_size == 3
    """
    run_cases(starter, tmp_path, source, "--dist-world-size=3").check(passed="test_session test_it")


def test_a_session_in_another_thread_than_the_main_one(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a program that runs pytest in a thread gets an internal error, which names the library."""
    source = """
        import threading
        import pytest

        @pytest.mark.distributed(world_size=2)
        def test_it(world): ...

        if __name__ == "__main__":
            codes = []
            arguments = ["-p", "dist_testing.core.pytest.plugin", __file__]
            thread = threading.Thread(target=lambda: codes.append(pytest.main(arguments)))
            thread.start()
            thread.join()
            raise SystemExit(codes[0])
    """
    child = starter.start([str(write_file(tmp_path, "test_cases.py", source))], tmp_path)
    assert child.wait() == 0, child.log
    assert "1 passed" in child.log


def test_file_runs_as_a_program_where_warnings_are_errors(starter: Starter, tmp_path: Path) -> None:
    """An installed package with a plugin is imported by the file, before pytest can rewrite its asserts."""
    installed = tmp_path / "dist_testing-0.dist-info"
    installed.mkdir()
    write_file(installed, "METADATA", "Metadata-Version: 2.1\nName: dist_testing\nVersion: 0\n")
    write_file(installed, "RECORD", "dist_testing/__init__.py,,\n")
    write_file(installed, "entry_points.txt", "[pytest11]\n{0} = {0}\n".format("dist_testing.core.pytest.plugin"))
    write_file(tmp_path, "pytest.ini", "[pytest]\nfilterwarnings = error\n")
    source = """
        import os
        import sys
        import pytest
        import dist_testing

        @pytest.mark.distributed(world_size=2)
        def test_it(world): ...

        if __name__ == "__main__":
            sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
            dist_testing.run_tests()
    """
    file = write_file(tmp_path, "test_file.py", source)
    child = starter.start([str(file)], tmp_path, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None}, fresh=True)
    assert child.wait() == 0, child.log
    assert "1 passed" in child.log
