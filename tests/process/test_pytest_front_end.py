"""Features of pytest in a marked test: fixtures, folders, skips, expected failures, and hooks that change reports."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

_FIXTURES = '''
    import os
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=2)
    NOTES = Path.cwd()

    @pytest.fixture(scope="module")
    def module_value():
        return os.getpid()

    @pytest.fixture
    def with_teardown(world, module_value):
        assert module_value == os.getpid(), "resolved on the rank"
        yield world.rank
        (NOTES / f"torn-down-{world.rank}").touch()

    def test_fixtures(world, with_teardown, request):
        assert with_teardown == world.rank
        request.addfinalizer(lambda: (NOTES / f"finalised-{world.rank}").touch())

    def test_rewritten(world):
        left, right = [1, 2, world.rank], [1, 2, 9]
        assert left == right

    @pytest.fixture
    def breaks_in_setup(world):
        if world.rank == 1:
            raise ValueError("planted in setup")

    @pytest.fixture
    def breaks_in_teardown(world):
        yield
        if world.rank == 1:
            raise ValueError("planted in teardown")

    @pytest.fixture(scope="session")
    def of_session(world):
        return world.rank

    def test_setup(world, breaks_in_setup): ...

    def test_teardown(world, breaks_in_teardown): ...

    def test_unknown_fixture(world, no_such_fixture): ...

    def test_wider_scope(of_session): ...

    def short():
        """One line."""
        text = """of
        data"""
        raise ValueError(text)

    def test_second_group(world):
        dist.init_process_group("gloo")

    def test_short(world):
        short()

    def test_interrupted(world):
        raise KeyboardInterrupt
'''


def test_fixtures_and_errors_are_those_of_plain_pytest(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a fixture is not torn down, or an error of one rank in it, or its line, is not told.

    ordinary_suite.py has every fixture of pytest; here are the errors.
    """
    ended = run_cases(starter, tmp_path, _FIXTURES)
    ended.check(
        passed="test_fixtures",
        failed="test_rewritten test_setup test_teardown test_unknown_fixture test_wider_scope test_second_group"
        " test_short test_interrupted",
        log=[
            "assert [1, 2, 0] == [1, 2, 9]",
            "rank 1 raised ValueError: planted in setup in setup",
            "rank 1 raised ValueError: planted in teardown in teardown",
            "FixtureLookupError: no fixture 'no_such_fixture' in setup",
            "fixture 'no_such_fixture' not found",
            "ScopeMismatch",
            "E       KeyboardInterrupt\n",
            "A world lives for one test. Give the fixture the scope of a function, or use",
            '>           raise ValueError("trying to initialize the default process group twice!")',
            "E           The library has made the default group. Remove the call, or mark the test with",
            '        """One line."""\n        text = """of\n        data"""\n',
        ],
    )
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {f"{what}-{rank}" for what in ("torn-down", "finalised") for rank in range(2)}
    assert "Initialize the default distributed process group." not in ended.log
    # pytest catches all other errors, and shows no frames of its own.
    assert "pluggy" not in ended.failures()["test_interrupted"]


_OUTCOMES = """
    import os
    import subprocess
    import unittest
    import pytest

    pytestmark = pytest.mark.distributed(world_size=2)

    def test_skips_as_unittest_does(world):
        raise unittest.SkipTest("as unittest")

    def test_skips_by_exit_code(world):
        raise SystemExit(74)

    def test_one_rank_skips(world):
        if world.rank == 1:
            pytest.skip("rank 1 alone")

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

    # The error type of an expected failure counts, as in plain pytest.

    @pytest.mark.xfail(raises=(KeyError, LookupError), reason="known")
    def test_expected(world):
        raise KeyError("key")

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

    # So does the mark that a test or a fixture has added, if no mark before it applies.

    @pytest.mark.parametrize("error", [ValueError, KeyError, None], ids=["expected", "other", "none"])
    def test_adds(world, request, error):
        request.applymarker(pytest.mark.xfail(raises=ValueError, reason="added", strict=True))
        if world.rank and error:
            raise error

    @pytest.fixture
    def adds(request):
        request.node.add_marker(pytest.mark.xfail(run=False, reason="would abort"))

    def test_adds_before_the_call(world, adds):
        os.abort()

    @pytest.mark.xfail(raises=ValueError)
    class TestOfClass:
        def test_has_a_mark(self, world, request):
            request.applymarker(pytest.mark.xfail(raises=KeyError, strict=True))
            raise ValueError

        def test_passes_anyway(self, world, request):
            request.applymarker(pytest.mark.xfail(strict=True))

    @pytest.fixture
    def breaks(world):
        yield
        raise OSError("planted in the teardown")

    @pytest.mark.xfail(raises=ValueError)
    def test_expected_and_teardown(world, breaks):
        raise ValueError("planted in the test")

    @pytest.mark.xfail(raises=pytest.RaisesGroup(ValueError))
    @pytest.mark.parametrize("kind", [ValueError, KeyError], ids=["expected", "other"])
    def test_group(world, kind):
        raise ExceptionGroup("several", [kind("one")])
"""


def test_skips_and_expected_failures(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a crash or an unexpected error is an expected failure, or a skip of one rank one of all.

    tests/plugins/test_same_as_pytest.py has what plain pytest has in the same way.
    """
    ended = run_cases(starter, tmp_path, _OUTCOMES)
    ended.check(
        xfail="test_xfail_not_run test_expected test_chosen_mark test_fresh[first] test_group[expected]"
        " test_adds[expected] test_adds_before_the_call test_has_a_mark",
        xpass="test_passes_anyway",
        failed="test_one_rank_skips test_xfail_crash test_xfail_leaves_a_process test_same_name test_other_mark"
        " test_fresh[second] test_expected_and_teardown test_group[other] test_adds[other] test_adds[none]",
        log=[
            "2 skipped",
            ": as unittest",
            ": CUDA is not available.",
            "test_adds[none] - [XPASS(strict)] added",
            "test_adds[expected] - added",
            "rank 1 skipped: rank 1 alone",
            "in the same way: it raised ValueError: planted in the test in call",
            "then it raised OSError: planted in the teardown in teardown",
        ],
    )
    left = r"test_xfail_leaves_a_process \(world of 2\): children left behind: sleep 1000 \(pid \d+, of rank 1\)"
    assert re.search(left, ended.log), ended.log


def test_folder_that_the_user_named_stays_the_runners(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks empty the folder, as pytest does at its start, and the runner's tests lose their files."""
    source = """
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
    """
    ended = run_cases(starter, tmp_path, source, f"--basetemp={tmp_path / 'named'}")
    ended.check(passed="test_before test_ranks test_after")


def test_a_torch_that_cannot_be_imported_is_told(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user without torch sees pytest's INTERNALERROR and 60 lines."""
    source = """
        import sys
        import pytest

        sys.modules["torch"] = None

        @pytest.mark.distributed
        def test_needs_it(world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == 4
    assert "ERROR: torch cannot be imported: ModuleNotFoundError" in ended.log
    assert "Install your build of it" in ended.log
    assert "Traceback" not in ended.log
    assert "INTERNALERROR" not in ended.log


def test_the_outcome_that_a_hook_gives_to_a_report_counts(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test passes although a hook has made it fail, or a hook that reads fixtures ends the session.

    Plugins for soft assertions make tests fail.
    """
    conftest = """
        import contextlib
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            found = getattr(item.module, "found", {})
            if report.when == "call" and call.excinfo is None and "outcome" in found:
                report.outcome = found["outcome"]
                report.longrepr = found.get("text")
            if "wasxfail" in found:
                report.wasxfail = found["wasxfail"]
            if report.when == "teardown" and "teardown" in found:
                report.outcome, report.longrepr = "failed", found["teardown"]
            if found.get("forgive"):
                report.outcome, report.longrepr = "passed", None
            with contextlib.suppress(KeyError):
                if report.failed and "tmp_path" in item.fixturenames:
                    # As in pytest's documentation.
                    report.sections.append(("folder", f"is {item.funcargs['tmp_path']}"))
                    report.sections.append(("folder", item.funcargs["no_fixture"]))
            return report
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)
        found = {}

        def test_soft(world):
            if world.rank == 1:
                found.update(outcome="failed", text="soft: two things\\nare wrong here")

        def test_without_text(world, tmp_path):
            found.update(outcome="failed")

        def test_teardown(world):
            found.update(teardown="soft: after the test")

        def test_skipped(world):
            found.update(outcome="skipped", text=("test_cases.py", 1, "Skipped: by a hook"))

        def test_expected(world):
            found.update(outcome="skipped", wasxfail="known")

        @pytest.mark.xfail
        def test_marked(world):
            found.update(outcome="failed", text="soft: marked")

        def test_forgiven(world):
            found.update(forgive=True)
            raise ValueError("forgiven")

        def test_nothing(world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == 1, ended.log
    ended.check(
        failed="test_soft test_without_text test_teardown",
        xfail="test_expected test_marked",
        passed="test_forgiven test_nothing",
    )
    assert "test_soft (world of 2): rank 1 raised Failed: are wrong here in call" in ended.log, ended.log
    assert "soft: two things" in ended.log
    assert "a hook of pytest set the outcome to failed, without a text" in ended.log
    assert "raised Failed: soft: after the test in teardown" in ended.log
    assert "is <tmp_path: on the ranks only>" in ended.log
    assert "no_fixture" not in ended.log
    assert "SKIPPED [1]" in ended.log
    assert "by a hook" in ended.log
