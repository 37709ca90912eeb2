"""Where a marker comes from: a parameter, a conftest, or a project that has its own marker of the same name."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

# What a project declares that has its own marker of this name.
_DECLARED = """
def pytest_configure(config):
    config.addinivalue_line("markers", "distributed(num_gpus): runs on the project's own launcher")
"""


def test_a_parameter_can_be_marked(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a marked parameter ends the session, or its case runs in the runner."""
    source = """
        import os
        import pytest

        @pytest.mark.parametrize("size", [0, pytest.param(3, marks=pytest.mark.distributed(world_size=3))])
        def test_reads_the_environment(size):
            assert os.environ.get("WORLD_SIZE", "0") == str(size)

        @pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.distributed)])
        def test_has_a_world(world, world_size, size):
            assert world.size == world_size == size

        @pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.distributed(world_size=[1, 2]))])
        def test_two_sizes(size):
            raise AssertionError("this must not run")

        @pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.distributed(world_size=2))])
        async def test_async(size):
            raise AssertionError("this must not run")

        @pytest.mark.distributed(world_size=2)
        @pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.distributed(world_size=3))])
        def test_is_marked_twice(world, size):
            assert world.size == size
    """
    ended = run_cases(starter, tmp_path, source, "--dist-world-size=2", "--continue-on-collection-errors")
    assert ended.code == 1, ended.log
    ended.check(
        passed="test_reads_the_environment[0] test_reads_the_environment[3] test_has_a_world[2]"
        " test_is_marked_twice[2]",
        error="test_two_sizes[2] test_is_marked_twice[3]",
        failed="test_async[2]",
    )
    assert "on a parameter or from a conftest, with world_size = (1, 2)." in ended.log
    assert "Each size makes a case, but this case was made without a size." in ended.log
    assert "Without one, make the test a plain function; asyncio.run() in it runs a coroutine." in ended.log


def test_a_conftest_can_add_the_marker(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that a conftest marks or repeats passes without ranks, or ends the session."""
    conftest = """
        import pytest

        def pytest_itemcollected(item):
            if "at_once" in item.name:
                item.add_marker(pytest.mark.distributed(world_size=2))

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            for item in items:
                if "late" in item.name:
                    item.add_marker(pytest.mark.distributed(world_size=2), append="other_size" not in item.name)
            # To run a test twice.
            items += [item for item in items if item.name == "test_late_world"]
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import os
        import pytest

        def test_late():
            assert os.environ.get("RANK") != "1"

        def test_at_once():
            assert os.environ.get("RANK") != "1"

        def test_late_world(world, world_size):
            assert world.size == world_size == 2

        @pytest.mark.distributed(timeout=60, world_size=2)
        def test_late_second_marker(world):
            assert world.size == 2

        @pytest.mark.distributed(world_size=3)
        def test_late_other_size(world):
            raise AssertionError("this must not run")
    """
    ended = run_cases(starter, tmp_path, source, "--continue-on-collection-errors")
    assert ended.code == 1, ended.log
    ended.check(
        failed="test_late test_at_once",
        passed="test_late_world test_late_second_marker",
        error="test_late_other_size",
    )
    assert ended.log.count("rank 1 raised AssertionError: assert '1' != '1'") >= 2
    assert ended.log.count("PASSED test_cases.py::test_late_world\n") == 2
    assert "Each size makes a case, but this case has 3 ranks already." in ended.log


def test_a_marker_that_comes_too_late_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, such a test passes without ranks.

    test_pytest_plain_sessions.py has a session in which no other test is distributed.
    """
    conftest = """
        import pytest

        def mark(items, name):
            for item in items:
                if item.name == name:
                    item.add_marker(pytest.mark.distributed(world_size=2))

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            yield
            mark(items, "test_after_all_others")

        def pytest_collection_finish(session):
            mark(session.items, "test_after_the_collection")

        def pytest_runtest_setup(item):
            mark([item], "test_in_its_setup")
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import pytest

        def test_after_all_others(): ...

        def test_after_the_collection(world): ...

        def test_in_its_setup(): ...

        @pytest.mark.distributed(world_size=2)
        def test_in_time(world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(
        error="test_after_all_others test_after_the_collection", failed="test_in_its_setup", passed="test_in_time"
    )
    for name in ("after_all_others", "after_the_collection", "in_its_setup"):
        assert f"test_{name}: @pytest.mark.distributed was added after the markers had been read." in ended.log
    assert "Traceback" not in ended.log


def test_an_ini_option_names_the_marker(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a project cannot use the library beside its own marker."""
    write_file(tmp_path, "conftest.py", _DECLARED)
    source = """
        import os
        import pytest

        @pytest.mark.distributed(num_gpus=2)
        def test_theirs():
            assert "RANK" not in os.environ

        @pytest.mark.ranks(world_size=2)
        def test_ours(world, world_size):
            assert world.size == world_size == 2

        # As projects write it whose marker is `world_size`.
        @pytest.mark.ranks(3)
        def test_by_position(world):
            assert world.size == 3
        """
    ended = run_cases(starter, tmp_path, source, "-o", "dist_marker=ranks")
    ended.check(passed="test_theirs test_ours test_by_position")
    ended = run_cases(starter, tmp_path, source.replace("world_size=2", "worldsize=2"), "-o", "dist_marker=ranks")
    assert "test_ours: @pytest.mark.ranks with worldsize = 2." in ended.log
    ended = run_cases(starter, tmp_path, source, "-o", "dist_marker=two words")
    assert ended.code == 4, ended.log
    assert "dist_marker = two words: this cannot be the name of a marker." in ended.log


def test_a_marker_with_two_meanings_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test with the project's marker runs on ranks, or one with the library's runs without."""
    write_file(tmp_path, "conftest.py", _DECLARED)
    source = """
        import os
        import pytest

        def test_plain(): ...

        @pytest.mark.distributed
        def test_whose():
            assert os.environ.get("RANK") in ("0", "1", "2", "3")
        """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == 2, ended.log
    assert "test_whose: @pytest.mark.distributed has two possible meanings." in ended.log
    assert "Traceback" not in ended.log
    run_cases(starter, tmp_path, source, "-k", "plain").check(passed="test_plain")
    for option in ("--override-ini=dist_marker=distributed", "--dist-world-size=2"):
        run_cases(starter, tmp_path, source, option).check(passed="test_plain test_whose")
