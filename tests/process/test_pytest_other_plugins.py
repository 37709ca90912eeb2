"""Distributed tests beside options and plugins of pytest that act in the runner, or that own a file of the session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

# One rank: each costs the start of an interpreter.
_SPAWN = """
import pytest

pytestmark = pytest.mark.distributed(world_size=1, isolation="spawn", init=False)

def test_fails(world):
    assert world.rank != 0

def test_passes(world): ...
"""


def test_a_time_limit_of_another_plugin_fails_one_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a plugin that limits tests by a signal ends the session by an internal error.

    tests/plugins has the same for fresh ranks, with pytest-timeout itself.
    """
    conftest = """
        import signal
        import pytest

        def over(number, frame):
            pytest.fail("Timeout of another plugin")

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            if item.get_closest_marker("limited") is None:
                return (yield)
            signal.signal(signal.SIGALRM, over)
            signal.setitimer(signal.ITIMER_REAL, 2)
            try:
                return (yield)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        def pytest_configure(config):
            config.addinivalue_line("markers", "limited: two seconds")
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import threading
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)

        def test_before(world): ...

        @pytest.mark.limited
        def test_waits(world):
            threading.Event().wait()

        def test_after(world):
            world.barrier()
    """
    ended = run_cases(starter, tmp_path, source, "--dist-isolation=pool")
    assert ended.code == 1, ended.log
    ended.check(passed="test_before test_after", failed="test_waits")
    assert "test_waits: Timeout of another plugin\nAnother plugin, such as pytest-timeout, has ended" in ended.log
    assert "threading.Event().wait()" in ended.log or "in test_waits" in ended.log, ended.log
    assert "INTERNALERROR" not in ended.log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--lf", "--nf", "--sw"), {"test_fails": "FAILED"}),
        (("--ff", "--sw-skip", "--cache-clear"), {"test_fails": "FAILED", "test_passes": "PASSED"}),
    ],
)
def test_fresh_interpreters_know_the_options_of_the_cache(
    starter: Starter, tmp_path: Path, options: tuple[str, ...], expected: dict[str, str]
) -> None:
    """If this fails, no rank that is a fresh interpreter starts when a user runs the last failures again."""
    write_file(tmp_path, ".pytest_cache/v/cache/lastfailed", '{"test_cases.py::test_fails": true}\n')
    ended = run_cases(starter, tmp_path, _SPAWN, *options)
    assert ended.outcomes() == expected, ended.log
    assert "rank 0 raised AssertionError: assert 0 != 0" in ended.log, ended.log
    cached = (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")
    assert json.loads(cached) == {"test_cases.py::test_fails": True}


def test_fresh_interpreters_leave_the_report_log_to_the_runner(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each rank empties the file in which pytest-reportlog keeps the session."""
    conftest = """
        def pytest_addoption(parser):
            parser.addoption("--report-log", dest="report_log", default=None)

        def pytest_configure(config):
            if config.option.report_log and not hasattr(config, "workerinput"):
                config.pluginmanager.register(Log(config.option.report_log))

        class Log:
            def __init__(self, path):
                self.file = open(path, "w", buffering=1)

            def pytest_runtest_logreport(self, report):
                if report.when == "call":
                    print(report.nodeid, report.outcome, file=self.file)
    """
    write_file(tmp_path, "conftest.py", conftest)
    ended = run_cases(starter, tmp_path, _SPAWN, "--report-log=log.txt")
    ended.check(failed="test_fails", passed="test_passes")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines() == [
        "test_cases.py::test_fails failed",
        "test_cases.py::test_passes passed",
    ]


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_a_test_that_is_only_set_up_has_not_passed(starter: Starter, tmp_path: Path, option: str) -> None:
    """If this fails, tests whose bodies have not run are in the results as passed."""
    source = """
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2)

        def test_marked(world):
            raise AssertionError("this must not run")

        @pytest.mark.xfail(strict=True)
        def test_expected(world):
            raise AssertionError("this must not run")

        @pytest.mark.skip(reason="not here")
        def test_skipped(world):
            raise AssertionError("this must not run")
    """
    ended = run_cases(starter, tmp_path, source, option)
    assert ended.code == 0, ended.log
    assert ended.outcomes() == {}, ended.log
    assert "passed" not in ended.log.splitlines()[-1], ended.log


_JSON_REPORT = """
    import pytest

    class Report:
        # As pytest-json-report does: a wrapper prepares what the other hooks use.
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item, nextitem):
            item.extra = {}
            yield
            del item.extra

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_setup(self, item):
            item.extra["setup"] = {}
            yield

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item, call):
            report = (yield).get_result()
            assert item.extra == {"setup": {}}
            report.extra = item.extra

    def pytest_configure(config):
        config.pluginmanager.register(Report())
    """


@pytest.mark.parametrize("isolation", ["pool", "spawn"])
def test_wrappers_of_other_plugins_are_around_a_test_on_its_ranks(
    starter: Starter, tmp_path: Path, isolation: str
) -> None:
    """If this fails, with pytest-json-report or pytest-retry every distributed test fails by an AttributeError."""
    write_file(tmp_path, "json_report.py", _JSON_REPORT)
    ended = run_cases(starter, tmp_path, _SPAWN, "-p", "json_report", f"--dist-isolation={isolation}")
    ended.check(failed="test_fails", passed="test_passes")
    assert "rank 0 raised AssertionError" in ended.log
