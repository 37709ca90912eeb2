"""Hooks of a conftest that change what pytest says of a test, on the ranks as in plain pytest."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter


def test_the_outcome_of_a_report_counts(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test passes although a hook has made it fail, as plugins for soft assertions do."""
    conftest = """
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

        def test_without_text(world):
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
    assert "SKIPPED [1]" in ended.log
    assert "by a hook" in ended.log
