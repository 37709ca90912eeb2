"""Fresh interpreters beside options and plugins of pytest that act in the runner, or that own a file of the session."""

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


# As pytest-reportlog does.
_REPORT_LOG = """
    def pytest_addoption(parser):
        parser.addoption("--report-log", dest="report_log", default=None)

    def pytest_configure(config):
        if config.option.report_log:
            config.pluginmanager.register(Log(config.option.report_log))

    class Log:
        def __init__(self, path):
            self.file = open(path, "w", buffering=1)

        def pytest_runtest_logreport(self, report):
            if report.when == "call":
                print(report.nodeid, report.outcome, file=self.file)
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--lf", "--nf", "--sw"), {"test_fails": "FAILED"}),
        (("--ff", "--sw-skip", "--cache-clear"), {"test_fails": "FAILED", "test_passes": "PASSED"}),
    ],
)
def test_the_cache_and_the_report_log_belong_to_the_runner(
    starter: Starter, tmp_path: Path, options: tuple[str, ...], expected: dict[str, str]
) -> None:
    """If this fails, no fresh interpreter knows the options of the cache, or each empties the log of the session."""
    write_file(tmp_path, ".pytest_cache/v/cache/lastfailed", '{"test_cases.py::test_fails": true}\n')
    write_file(tmp_path, "conftest.py", _REPORT_LOG)
    ended = run_cases(starter, tmp_path, _SPAWN, *options, "--report-log=log.txt")
    assert ended.outcomes() == expected, ended.log
    assert "rank 0 raised AssertionError: assert 0 != 0" in ended.log, ended.log
    cached = (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")
    assert json.loads(cached) == {"test_cases.py::test_fails": True}
    reported = (tmp_path / "log.txt").read_text(encoding="utf-8").split()[1::2]
    assert reported == [outcome.lower() for outcome in expected.values()]
