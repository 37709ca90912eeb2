"""Ranks that are separate interpreters: they import everything again, in the current environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import run_cases, run_pytest, write_file
from tests.support.starter import Starter

# The cases import this file: its values were decided at import.
_SETTINGS = """
    import os
    import sys

    argv = sys.argv[1:]
    pid = os.getpid()
    mode = os.environ.get("OF_THE_MOMENT", "unset")
"""


def test_under_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a spawned rank does not see the current environment, or a forked one not the runner's imports."""
    write_file(tmp_path, "settings.py", _SETTINGS)
    # The interpreter finds its own, and Python ignores such an entry.
    write_file(tmp_path, "types.py", "raise ImportError('planted')")
    source = """
        import os
        import sys
        from pathlib import Path
        import pytest
        import settings
        import torch
        import torch.distributed as dist

        sys.path.insert(0, Path.cwd())

        @pytest.fixture(scope="module", autouse=True)
        def of_the_moment():
            os.environ["OF_THE_MOMENT"] = "set"

        def test_plain():
            assert settings.mode == "unset"

        @pytest.mark.distributed(world_size=2, isolation="spawn")
        def test_spawned(world, tmp_path):
            assert settings.pid == os.getpid()
            assert settings.mode == "set", "the environment is there before anything is imported"
            assert settings.argv == ["-rA", "test_cases.py"]
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 2

        @pytest.mark.distributed(world_size=2, isolation="spawn", init=False)
        def test_without_a_group(world):
            sockets = [int(fd) for fd in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{fd}").is_socket()]
            own = [fd for fd in sockets if fd > 2]
            assert own
            assert not any(map(os.get_inheritable, own)), "a daemon of the test would keep what the rank was given"

        @pytest.mark.distributed(world_size=2)
        def test_forked(world):
            assert settings.pid != os.getpid()
            assert settings.mode == "unset"
            assert os.environ["OF_THE_MOMENT"] == "set"

        @pytest.mark.distributed(world_size=2, isolation="pool")
        def test_pooled(world): ...

        @pytest.mark.distributed(world_size=2, isolation="spawn")
        def test_fails(world):
            print(f"said by rank {world.rank}")
            assert world.rank == 0
    """
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", "test_cases.py", env={"PYTHONWARNINGS": "default::ResourceWarning"})
    ended.check(passed="test_plain test_spawned test_without_a_group test_forked test_pooled", failed="test_fails")
    assert "rank 1 raised AssertionError" in ended.log
    assert "said by rank 1" in ended.log
    assert "unclosed file" not in ended.log, "python -X dev blames the tests for a file of the library"


_UNITTEST = """
    import os
    import unittest
    import settings
    import dist_testing

    class TestSpawned(dist_testing.MultiProcessTestCase):
        world_size = 2
        isolation = "spawn"

        def setUp(self):
            super().setUp()
            os.environ["OF_THE_MOMENT"] = "set"
            self._spawn_processes()

        def test_settings(self):
            self.assertEqual(settings.pid, os.getpid())
            self.assertEqual(settings.mode, "set")

    if __name__ == "__main__":
        unittest.main()
"""


@pytest.mark.parametrize("arguments", [["-m", "unittest", "test_cases"], ["test_cases.py"], ["-m", "test_cases"]])
def test_under_unittest(starter: Starter, tmp_path: Path, arguments: list[str]) -> None:
    """If this fails, a fresh interpreter does not find the tests of an imported file or of the main program."""
    write_file(tmp_path, "settings.py", _SETTINGS)
    write_file(tmp_path, "test_cases.py", _UNITTEST)
    child = starter.start(arguments, tmp_path, fresh=True)
    assert child.wait() == 0, child.log
    assert "Ran 1 test" in child.log


def test_a_runner_without_standard_input_starts_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, no rank of a service that has no terminal starts, or its output is lost."""
    source = """
        import os
        import pytest

        def says(world):
            assert os.read(0, 1) == b""
            print("said by rank", world.rank)
            if world.rank == 0:
                assert os.system("echo said by its child") == 0
            raise ValueError("planted")

        @pytest.mark.distributed(world_size=2)
        def test_forked(world):
            says(world)

        @pytest.mark.distributed(world_size=2, isolation="spawn")
        def test_spawned(world):
            says(world)
    """
    write_file(tmp_path, "conftest.py", "import os\nos.close(0)\n")
    write_file(tmp_path, "test_cases.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", "-s", "test_cases.py")
    ended.check(failed="test_forked test_spawned")
    for told in ended.failures().values():
        assert "raised ValueError: planted" in told
        assert "said by rank 0\nsaid by its child\n" in told


# Ranks have RANK before their first import.
_ENDS_AT_IMPORT = """
    import os
    import signal
    from pathlib import Path
    import pytest

    if "RANK" in os.environ:
        with Path("imports").open("a") as file:
            file.write("x")
        {end}

    @pytest.mark.distributed(world_size=2, isolation="spawn")
    def test_it(world): ...
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(3)", "exited with code 3 in import"),
        ("os.kill(os.getpid(), 11)", "was killed by SIGSEGV (11) in import"),
    ],
)
def test_rank_that_dies_in_an_import_of_the_tests_has_crashed(
    starter: Starter, tmp_path: Path, end: str, said: str
) -> None:
    """If this fails, a crash of test code counts as the machine's, and a second try hides one that comes and goes."""
    ended = run_cases(starter, tmp_path, _ENDS_AT_IMPORT.format(end=end))
    assert ended.outcomes() == {"test_it": "FAILED"}, ended.log
    assert said in ended.log
    assert "No test code is to blame" not in ended.log
    assert len((tmp_path / "imports").read_text()) <= 2, "test code has run, so that a second try would prove nothing"


def test_environment_too_large_for_a_new_program_is_named(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the report says no more than "exit code 1"."""
    source = """
        import os
        import pytest

        @pytest.fixture(scope="module", autouse=True)
        def large():
            os.environ["LARGE"] = 200_000 * "x"

        def test_plain(): ...

        @pytest.mark.distributed(world_size=2, isolation="spawn")
        def test_it(world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    ended.check(passed="test_plain", failed="test_it")
    assert "cannot become a fresh interpreter: [Errno 7] Argument list too long" in ended.log
    assert "The environment is too large for a new program" in ended.log
    assert "Unset what the tests do not need" in ended.log


# Ranks that are fresh interpreters import a file after the runner.
_ONCE = """
    from pathlib import Path
    import pytest
    import dist_testing

    try:
        Path("imported").touch(exist_ok=False)
    except FileExistsError:
        raise ValueError("planted in the second import")

    @pytest.mark.distributed(world_size=2)
    def test_once(world): ...

    class TestOnce(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_class(self): ...
"""
_OTHER = """
    import pytest

    @pytest.mark.distributed(world_size=2)
    def test_other(world):
        world.barrier()
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--dist-isolation=spawn", "--continue-on-collection-errors"], id="each rank"),
        pytest.param(["-p", "xdist", "-n", "1"], id="the one that ranks are forked from"),
    ],
)
def test_a_file_that_cannot_be_imported_fails_only_its_own_tests(
    starter: Starter, tmp_path: Path, options: list[str]
) -> None:
    """If this fails, one broken file makes a whole run red, or its tests are told to fail for another reason.

    A file can be broken for all, or for those that import it after the runner.
    """
    if "xdist" in options:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    for name, source in {"broken": "import nonexistent\n", "once": _ONCE, "other": _OTHER}.items():
        write_file(tmp_path, f"test_{name}.py", source)
    ended = run_pytest(starter, tmp_path, "-rA", *options)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    ended.check(failed="test_once test_class", passed="test_other", log=["No module named 'nonexistent'"])
    # Each of the two tests reports it.
    assert ended.log.count("ValueError: planted in the second import") >= 2
    assert "KeyError" not in ended.log
