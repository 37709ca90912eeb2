"""The marker and the options: every valid form, and a clear error for every invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Ended, run_cases, write_file
from tests.support.starter import Starter

_HEAD = "import pytest\n\n"
_TEST = "\ndef test_marked(world):\n    pass\n"


def _assert_clear(ended: Ended, *said: str) -> None:
    """Check that the reason is in the log, and none of the library's own code."""
    for text in said:
        assert text in ended.log, ended.log
    assert "Traceback" not in ended.log
    assert "dist_testing/" not in ended.log.replace("dist_testing/config", ""), ended.log


def test_marker_forms(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a form of the marker (function, class, module, sizes, groups) has another meaning."""
    ended = run_cases(
        starter,
        tmp_path,
        """
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


        @pytest.mark.distributed(backends=["nccl"])
        def test_elsewhere(world):
            pass


        @pytest.mark.distributed(backends=["gloo", "nccl"])
        def test_here(world):
            assert world.backend == "gloo"


        @pytest.mark.distributed(world_size=2)
        def test_without_the_fixture():
            assert dist.get_world_size() == 2
        """,
        "--dist-world-size=3",
    )
    assert ended.code == 0, ended.log
    assert ended.outcomes() == dict.fromkeys(
        [
            "test_default",
            "test_alone",
            "test_sizes[world_size=1-a]",
            "test_sizes[world_size=2-a]",
            "test_sizes[world_size=1-b]",
            "test_sizes[world_size=2-b]",
            "test_without_group",
            "test_expected_exit",
            "test_inherits",
            "test_says_otherwise",
            "test_here",
            "test_without_the_fixture",
        ],
        "PASSED",
    )
    assert "1 deselected" in ended.log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("4", "positional arguments (4,).\nIt takes keyword arguments only.\nWrite world_size=4, for example."),
        ("worldsize=4", "worldsize = 4.\nIt takes world_size, init,"),
        ("colour=4", "colour = 4.\nIt takes world_size, init,"),
        ("world_size=0", "world_size = 0.\nIt is a number from 1 to 1024"),
        ("world_size=-1", "world_size = -1"),
        ("world_size='two'", "world_size = 'two'"),
        ("world_size=True", "world_size = True"),
        ("world_size=1025", "world_size = 1025"),
        ("world_size=[]", "world_size = []"),
        (
            "world_size=[2, 2]",
            "world_size = [2, 2].\nIt is a number from 1 to 1024, or a list of such numbers, each once",
        ),
        ("timeout=0", "timeout = 0.\nIt is a number of seconds above 0"),
        ("timeout=-1", "timeout = -1"),
        ("timeout='long'", "timeout = 'long'"),
        ("timeout=float('nan')", "timeout = nan"),
        ("isolation='jail'", "isolation = 'jail'.\nIt is one of fork, spawn, pool"),
        ("init='no'", "init = 'no'.\nIt is True or False"),
        ("expected_exits={-1: 0}", "expected_exits = {-1: 0}"),
        ("backends='gloo'", "backends = 'gloo'.\nIt is a list of names"),
        ("backends=['glo']", "Did you mean 'gloo'?"),
    ],
)
def test_bad_marker_is_a_clear_error(starter: Starter, tmp_path: Path, arguments: str, said: str) -> None:
    """If this fails, a mistake in a marker runs something else, or shows the library's internals."""
    ended = run_cases(starter, tmp_path, f"{_HEAD}@pytest.mark.distributed({arguments}){_TEST}")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    _assert_clear(ended, said, "test_cases.py::test_marked")


def test_expected_exit_of_a_rank_outside_the_world_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test passes although its expectation can never happen and nothing was checked."""
    ended = run_cases(
        starter, tmp_path, f"{_HEAD}@pytest.mark.distributed(expected_exits={{2: -9}}, world_size=2){_TEST}"
    )
    assert ended.code != 0, ended.log
    _assert_clear(ended, "expected_exits = {2: -9}")


def test_expected_exit_must_come_after_the_test_has_begun(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test of a fault passes although its body has never run."""
    ended = run_cases(
        starter,
        tmp_path,
        """
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
        """,
    )
    assert ended.outcomes() == {
        "test_setup": "FAILED",
        "test_leaves": "FAILED",
        "test_teardown": "PASSED",
        "test_call": "PASSED",
    }, ended.log
    assert "expected to end by SIGKILL (9), but it did so before the test began in setup" in ended.log, ended.log
    assert "rank 1 exited with code 3 in setup" in ended.log, ended.log


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_it(world):\n    pass\n", "test_cases.py::test_it uses the fixture `world` without the marker"),
        (
            "@pytest.fixture\ndef size(world):\n    return world.size\n\ndef test_it(size):\n    pass\n",
            "uses the fixture `world` without the marker",
        ),
        ("def test_it(world_size):\n    pass\n", "test_it uses the fixture `world_size` without the marker"),
    ],
)
def test_world_without_the_marker_is_a_clear_error(starter: Starter, tmp_path: Path, source: str, said: str) -> None:
    """If this fails, the most common mistake of all gives no clear error."""
    ended = run_cases(starter, tmp_path, _HEAD + source)
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    _assert_clear(ended, said, "Mark it with @pytest.mark.distributed")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            '@marked\n@pytest.mark.parametrize("a, world_size", [(1, 2)])\ndef test_it(world, a):\n    pass\n',
            "test_it: parametrize sets `world_size`",
        ),
        (
            "import unittest\n\n@marked\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        pass\n",
            "TestIt::test_it: @pytest.mark.distributed on a method of a unittest class",
        ),
        (
            "from dist_testing import MultiProcessTestCase\n\n"
            "@marked\nclass TestIt(MultiProcessTestCase):\n    def test_it(self):\n        pass\n",
            "Take the marker off, also from the module: attributes of the class, such as world_size, say the same.",
        ),
    ],
    ids=["parametrize", "unittest", "unittest on ranks"],
)
def test_tests_that_cannot_run_on_ranks_are_refused_at_collection(
    starter: Starter, tmp_path: Path, source: str, said: str
) -> None:
    """If this fails, such a test runs and tests something else than it says."""
    ended = run_cases(starter, tmp_path, f"{_HEAD}marked = pytest.mark.distributed(world_size=2)\n\n{source}")
    assert ended.code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR), ended.log
    _assert_clear(ended, said)


def test_another_world_size_is_an_error_on_the_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the value of a fixture and the real size of the world can differ."""
    source = """
        import pytest

        @pytest.fixture
        def world_size():
            return 3

        @pytest.mark.distributed(world_size=2)
        def test_it(world, world_size):
            pass
        """
    ended = run_cases(starter, tmp_path, source)
    assert ended.outcomes() == {"test_it": "FAILED"}
    _assert_clear(ended, "UsageError: There is a fixture `world_size` that is not the library's")


def test_mark_that_cannot_be_evaluated_fails_its_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a mistake in one condition ends the whole session, or lets the test run."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=1)


        @pytest.mark.skipif("no_such_name > 3")
        def test_condition(world): ...


        @pytest.mark.skipif(True)
        def test_no_reason(world): ...


        @pytest.mark.skip(raeson="misspelt")
        def test_misspelt(world): ...


        @pytest.mark.xfail("world.rank == 0")
        def test_of_a_rank(world): ...


        @pytest.mark.skip(reason="")
        def test_empty_reason(world):
            assert False


        def test_next(world): ...
        """,
    )
    assert ended.outcomes() == {
        **dict.fromkeys(["test_condition", "test_no_reason", "test_misspelt", "test_of_a_rank"], "ERROR"),
        "test_next": "PASSED",
    }, ended.log
    # pytest names a skip by its reason.
    assert "1 passed, 1 skipped, 4 errors" in ended.log
    # pytest's own texts.
    for text in (
        "NameError: name 'no_such_name' is not defined",
        "you need to specify reason=STRING when using booleans as conditions",
    ):
        assert text in ended.log, ended.log


def test_names_of_the_fixtures_stay_free_elsewhere(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the installed plugin breaks a project that has its own `world` fixture."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import pytest

        @pytest.fixture
        def world():
            return "hello"

        @pytest.fixture
        def world_size():
            return 7

        def test_it(world, world_size):
            assert (world, world_size) == ("hello", 7)

        @pytest.mark.parametrize("world_size", [8])
        def test_parametrized(world_size):
            assert world_size == 8
        """,
    )
    assert ended.code == 0, ended.log


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--dist-backend=glo", "Backend 'glo' is not declared.\nThe declared backends are cuda_gloo,"),
        ("--dist-world-size=0", "--dist-world-size=0: expected numbers from 1 to 1024"),
        ("--dist-world-size=-1", "--dist-world-size=-1"),
        ("--dist-world-size=two", "--dist-world-size=two"),
        ("--dist-world-size=1,,2", "--dist-world-size=1,,2"),
        ("--dist-timeout=abc", "--dist-timeout=abc: expected a number of seconds above 0"),
        ("--dist-timeout=-1", "--dist-timeout=-1"),
        ("--dist-timeout=0", "--dist-timeout=0"),
        ("--dist-timeout=nan", "--dist-timeout=nan"),
        ("--dist-isolation=nonsense", "--dist-isolation=nonsense: expected one of fork, spawn, pool"),
        ("--dist-debug-rank=-1", "--dist-debug-rank=-1: expected the number of a rank, from 0."),
        ("--dist-debug-rank=1024", "--dist-debug-rank=1024: expected the number of a rank"),
        ("--dist-debug-rank=one", "--dist-debug-rank=one"),
        ("--dist-debug-rank=0", "--dist-debug-rank=0: there is no terminal"),
        ("--dist-on-missing=maybe", "--dist-on-missing=maybe: expected one of skip, fail"),
        ("-pno:skipping", "-p no:skipping: the plugin skipping of pytest is missing."),
        ("-pno:debugging", "-p no:debugging: the plugin debugging of pytest is missing."),
        ("-pno:capture", "-p no:capture: the plugin capturemanager of pytest is missing."),
    ],
)
def test_bad_option_is_a_usage_error(starter: Starter, tmp_path: Path, option: str, said: str) -> None:
    """If this fails, a wrong option is found only after tests are collected."""
    ended = run_cases(starter, tmp_path, f"{_HEAD}@pytest.mark.distributed{_TEST}", option)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    _assert_clear(ended, said)


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
    assert ended.outcomes() == {"test_hangs[world_size=1]": "FAILED", "test_hangs[world_size=2]": "FAILED"}
    assert "in test_hangs" in ended.log

    nccl = ("--dist-backend=nccl", "--dist-world-size=2")
    ended = run_cases(starter, tmp_path, source, *nccl, CUDA_VISIBLE_DEVICES="")
    assert ended.code == 0
    assert "Need at least 2 CUDA devices (found 0; CUDA_VISIBLE_DEVICES='' hides every device)" in ended.log
    ended = run_cases(starter, tmp_path, source, *nccl, "--dist-on-missing=fail", CUDA_VISIBLE_DEVICES="")
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert ": hardware missing: Need at least 2 CUDA devices" in ended.log


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (
            "@pytest.mark.distributed(world_size=2)\n@pytest.mark.distributed(world_size=3)",
            "with world_size = 2 and 3, in two markers of one function.",
        ),
        ("@pytest.mark.distributed(world_size=4, nodes=3)", "test_it: nodes = 3 with world_size = 4."),
        (
            "@pytest.mark.distributed(world_size=2, expected_exits={7: -9})",
            "test_it: expected_exits = {7: -9} in a world",
        ),
    ],
)
def test_impossible_markers_are_refused_at_collection(starter: Starter, tmp_path: Path, marks: str, said: str) -> None:
    """If this fails, a mistake is told only when the test runs, or not at all."""
    ended = run_cases(starter, tmp_path, f"import pytest\n\n{marks}\ndef test_it(world):\n    pass\n")
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    _assert_clear(ended, said)


def test_own_fixture_world_is_a_warning(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test does not see its world, and its author does not know why."""
    source = """
        import pytest

        @pytest.fixture
        def world({argument}):
            return 3

        @pytest.mark.distributed(world_size=2)
        def test_it(world):
            assert world == 3
    """
    hides, adds = (run_cases(starter, tmp_path, source.format(argument=argument)) for argument in ("", "world"))
    assert "A fixture `world` of the project hides the library's" in hides.log
    assert "hides" not in adds.log
    assert hides.code == adds.code == 0


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
        def test_it(world):
            pass

        if __name__ == "__main__":
            sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
            dist_testing.run_tests()
    """
    file = write_file(tmp_path, "test_file.py", source)
    child = starter.start([str(file)], tmp_path, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None}, fresh=True)
    assert child.wait() == 0, child.log
    assert "1 passed" in child.log
