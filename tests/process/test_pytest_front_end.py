"""Features of pytest in a marked test: fixtures, folders, captured output, patches, skips and expected failures."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.children import run_cases
from tests.support.starter import Starter


def test_pytests_fixtures_work_on_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a fixture, a folder, captured output or a patch works in plain pytest but not on ranks."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import logging
        import os
        from pathlib import Path

        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)
        torn_down = Path.cwd()


        @pytest.fixture(scope="module")
        def module_value():
            return os.getpid()


        @pytest.fixture
        def with_teardown(world, module_value):
            assert module_value == os.getpid(), "resolved on the rank"
            yield world.rank
            (torn_down / f"torn-down-{world.rank}").touch()


        def test_fixtures(world, with_teardown, request):
            assert with_teardown == world.rank
            request.addfinalizer(lambda: (torn_down / f"finalised-{world.rank}").touch())


        def test_tmp_path_is_the_ranks_own(world, tmp_path, tmp_path_factory, tmpdir_factory):
            (tmp_path / "own").write_text(str(world.rank))
            (world.rank_tmp_path / "own").write_text(str(world.rank))
            (world.tmp_path / f"rank-{world.rank}").touch()
            world.barrier()
            assert (tmp_path / "own").read_text() == str(world.rank)
            assert (world.rank_tmp_path / "own").read_text() == str(world.rank)
            assert {path.name for path in world.tmp_path.iterdir()} >= {"rank-0", "rank-1"}
            assert tmp_path_factory.mktemp("more").exists()
            assert tmpdir_factory.getbasetemp() == tmp_path_factory.getbasetemp()


        def test_capsys(world, capsys):
            print("out")
            assert capsys.readouterr().out == "out\\n"


        def test_capfd(world, capfd):
            os.write(2, b"raw")
            assert capfd.readouterr().err == "raw"


        def test_caplog(world, caplog):
            logging.getLogger("x").warning("of rank %d", world.rank)
            assert caplog.messages == [f"of rank {world.rank}"]


        def test_monkeypatch(world, monkeypatch):
            monkeypatch.setenv("PATCHED", str(world.rank))
            monkeypatch.chdir(world.rank_tmp_path)
            assert os.environ["PATCHED"] == str(world.rank)


        def test_recwarn(world):
            with pytest.warns(UserWarning, match="careful"):
                import warnings
                warnings.warn("careful")


        def test_rewritten(world):
            left, right = [1, 2, world.rank], [1, 2, 9]
            assert left == right
        """,
    )
    assert {name for name, outcome in ended.outcomes().items() if outcome == "FAILED"} == {"test_rewritten"}, ended.log
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {f"{what}-{rank}" for what in ("torn-down", "finalised") for rank in range(2)}
    assert "assert [1, 2, 0] == [1, 2, 9]" in ended.log, "assertions on ranks are explained, too"


def test_skips_and_expected_failures(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a mark is judged on each rank, or a crash counts as an expected failure."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import os
        import subprocess
        import unittest

        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)


        @pytest.mark.skip(reason="by mark")
        def test_skip(world):
            os.abort()


        @pytest.mark.skipif(True, reason="by condition")
        def test_skipif(world):
            os.abort()


        @pytest.mark.skipif(False, reason="never")
        def test_not_skipped(world):
            pass


        def test_skips_inside(world):
            pytest.skip("inside")


        def test_skips_as_unittest_does(world):
            raise unittest.SkipTest("as unittest")


        def test_skips_by_exit_code(world):
            raise SystemExit(74)


        def test_one_rank_skips(world):
            if world.rank == 1:
                pytest.skip("rank 1 alone")


        def test_importorskip(world):
            pytest.importorskip("nothing_of_this_name")


        @pytest.mark.xfail(reason="known")
        def test_xfail(world):
            assert world.rank == 0


        @pytest.mark.xfail(reason="passes by now")
        def test_xpass(world):
            pass


        @pytest.mark.xfail(strict=True, reason="passes by now")
        def test_xpass_strict(world):
            pass


        @pytest.mark.xfail(run=False, reason="would abort")
        def test_xfail_not_run(world):
            os.abort()


        @pytest.mark.xfail(reason="a crash is not an expected failure")
        def test_xfail_crash(world):
            os._exit(1)


        @pytest.mark.xfail(reason="known, but not what it leaves behind")
        def test_xfail_leaves_a_process(world):
            if world.rank == 1:
                subprocess.Popen(["sleep", "1000"])
            raise ValueError("planted")


        def test_pytest_fail(world):
            pytest.fail("on purpose")

        """,
    )
    assert ended.outcomes() == {
        "test_not_skipped": "PASSED",
        "test_one_rank_skips": "FAILED",
        "test_xfail": "XFAIL",
        "test_xpass": "XPASS",
        "test_xpass_strict": "FAILED",
        "test_xfail_not_run": "XFAIL",
        "test_xfail_crash": "FAILED",
        "test_xfail_leaves_a_process": "FAILED",
        "test_pytest_fail": "FAILED",
    }
    for reason in (
        "by mark",
        "by condition",
        "inside",
        "as unittest",
        "CUDA is not available.",
        "nothing_of_this_name",
    ):
        assert any(line.startswith("SKIPPED") and reason in line for line in ended.log.splitlines()), reason
    assert "6 skipped" in ended.log
    assert "rank 1 skipped: rank 1 alone" in ended.log
    assert "[XPASS(strict)] passes by now" in ended.log
    left = r"test_xfail_leaves_a_process \(world of 2\): children left behind: sleep 1000 \(pid \d+, of rank 1\)"
    assert re.search(left, ended.log), ended.log


def test_expected_failure_respects_its_error_type(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an error of another type passes as the expected failure, unlike in plain pytest."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)


        @pytest.mark.xfail(raises=(KeyError, LookupError), reason="known")
        def test_expected(world):
            raise KeyError("key")


        @pytest.mark.xfail(raises=KeyError, reason="known")
        def test_other(world):
            raise ValueError("not what was expected")


        def test_inside(world):
            pytest.xfail("decided by the test")


        def make():
            class Twin(Exception):
                pass

            return Twin


        First, Second = make(), make()


        @pytest.mark.xfail(raises=First, reason="known", strict=True)
        def test_same_name(world):
            raise Second


        @pytest.mark.xfail(False, raises=Second, reason="does not apply")
        @pytest.mark.xfail(raises=(ValueError, First), reason="known")
        def test_chosen_mark(world):
            raise First if world.rank else ValueError


        @pytest.mark.xfail(raises=Second, reason="known")
        @pytest.mark.xfail(False, raises=First, reason="does not apply")
        def test_other_mark(world):
            raise First


        @pytest.mark.distributed(world_size=2, isolation="spawn")
        @pytest.mark.xfail(raises=First, reason="known")
        @pytest.mark.parametrize("cls", [First, Second], ids=["first", "second"])
        def test_fresh(world, cls):
            raise cls
        """,
    )
    assert ended.outcomes() == {
        "test_expected": "XFAIL",
        "test_other": "FAILED",
        "test_inside": "XFAIL",
        "test_same_name": "FAILED",
        "test_chosen_mark": "XFAIL",
        "test_other_mark": "FAILED",
        "test_fresh[first]": "XFAIL",
        "test_fresh[second]": "FAILED",
    }, ended.log


def test_error_in_a_fixture_is_the_ranks_failure(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an error in setup or teardown on one of two ranks is lost."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)


        @pytest.fixture
        def breaks_in_setup(world):
            if world.rank == 1:
                raise ValueError("planted in setup")


        @pytest.fixture
        def breaks_in_teardown(world):
            yield
            if world.rank == 1:
                raise ValueError("planted in teardown")


        def test_setup(world, breaks_in_setup):
            pass


        def test_teardown(world, breaks_in_teardown):
            pass


        def test_unknown_fixture(world, no_such_fixture):
            pass
        """,
    )
    assert ended.outcomes() == dict.fromkeys(["test_setup", "test_teardown", "test_unknown_fixture"], "FAILED")
    assert "rank 1 raised ValueError: planted in setup in setup" in ended.log
    assert "rank 1 raised ValueError: planted in teardown in teardown" in ended.log
    assert "fixture 'no_such_fixture' not found" in ended.log


def test_folder_that_the_user_named_stays_the_runners(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks empty the folder, as pytest does at its start, and the runner's tests lose their files."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import pytest

        KEPT = []


        def test_before(tmp_path):
            KEPT.append(tmp_path / "file")
            KEPT[0].touch()


        @pytest.mark.distributed(world_size=2)
        def test_ranks(world, tmp_path):
            (tmp_path / "file").touch(exist_ok=False)


        def test_after():
            assert KEPT[0].exists()
        """,
        f"--basetemp={tmp_path / 'named'}",
    )
    assert set(ended.outcomes().values()) == {"PASSED"}, ended.log


def test_long_docstrings_are_left_out_of_the_source(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the hundred lines of torch's docstring hide the error, or lines of code are left out with them."""
    source = '''
        import pytest
        import torch.distributed as dist


        def short():
            """One line."""
            text = """of
            data"""
            raise ValueError(text)


        @pytest.mark.distributed(world_size=1)
        def test_second_group(world):
            dist.init_process_group("gloo")


        @pytest.mark.distributed(world_size=1)
        def test_short(world):
            short()
    '''
    log = run_cases(starter, tmp_path, source).log
    assert "Initialize the default distributed process group." not in log
    assert '>           raise ValueError("trying to initialize the default process group twice!")' in log
    assert "E           The library has made the default group. Remove the call, or mark the test with" in log
    assert '        """One line."""\n' in log
    assert '        text = """of\n' in log
    assert '        data"""\n' in log


def test_a_fixture_of_a_wider_scope_is_told_how_long_a_world_lives(starter: Starter, tmp_path: Path) -> None:
    """If this fails, pytest's text names the scopes, and no way to have the rank in a fixture of the session."""
    log = run_cases(
        starter,
        tmp_path,
        """
        import pytest


        @pytest.fixture(scope="session")
        def rank(world):
            return world.rank


        @pytest.mark.distributed
        def test_uses_it(rank):
            pass
        """,
    ).log
    assert "ScopeMismatch" in log
    assert "A world lives for one test. Give the fixture the scope of a function, or use" in log


def test_a_torch_that_cannot_be_imported_is_told(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user without torch sees pytest's INTERNALERROR and 60 lines."""
    ended = run_cases(
        starter,
        tmp_path,
        """
        import sys

        import pytest

        sys.modules["torch"] = None


        @pytest.mark.distributed
        def test_needs_it(world):
            pass
        """,
    )
    assert ended.code == 4
    assert "ERROR: torch cannot be imported: ModuleNotFoundError" in ended.log
    assert "Install your build of it" in ended.log
    assert "Traceback" not in ended.log
    assert "INTERNALERROR" not in ended.log
