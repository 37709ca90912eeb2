"""pytest's configuration under Bazel: the files that a target declares, and no others.

Outside a sandbox the execution root, and with it files of the workspace, lies above the runfiles. A result that depends
on them is stored under a cache key that does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import pytest

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert os.environ.get("DECLARED") == EXPECTED

    def test_in_the_runner(request):
        assert os.environ.get("DECLARED") == EXPECTED
        assert request.config.getini("junit_suite_name") == SUITE
"""


def _cases(declared: str | None, suite: str = "pytest") -> str:
    return _CASES.replace("EXPECTED", repr(declared)).replace("SUITE", repr(suite))


# Files that lie above the runfiles in the execution root, as a workspace may well have them.
_HOSTILE = {
    "conftest.py": "raise RuntimeError('an undeclared conftest.py was imported')",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--no-such-option'\n",
    "pytest.ini": "[pytest]\naddopts = --no-such-option\n",
    "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
    "tox.ini": "[pytest]\naddopts = --no-such-option\n",
    ".coveragerc": "[run]\nplugins = no_such_plugin\n",
}


# Fresh interpreters collect the tests again: with other files they would run other tests.
@pytest.mark.parametrize(("above", "isolation"), [(".", "fork"), ("runfiles", "fork"), (".", "spawn")])
def test_files_around_the_runfiles_change_nothing(starter: Starter, tmp_path: Path, above: str, isolation: str) -> None:
    """A broken conftest.py in the workspace would be `(cached) PASSED` for one user and a failure for the next."""
    target = Target(tmp_path, {"test_cases.py": _cases(None)}, world_size=2, spec={"isolation": isolation})
    for name, content in _HOSTILE.items():
        write_file(tmp_path / above, name, content)
    ended = target.run(starter)
    assert ended.code == 0, ended.log
    target.check(passed="test_on_ranks test_in_the_runner")


@pytest.mark.parametrize("folder", ["pkg", "."])
def test_declared_files_count(starter: Starter, tmp_path: Path, folder: str) -> None:
    """A target lists its conftest.py and its configuration in `data` or `deps`; then they are in the runfiles."""
    target = Target(tmp_path, {"test_cases.py": _cases("yes", "declared")}, world_size=2)
    runfiles = tmp_path / "runfiles" / "_main"
    write_file(runfiles / folder, "conftest.py", "import os\n\nos.environ['DECLARED'] = 'yes'\n")
    write_file(runfiles / folder, "pytest.ini", "[pytest]\njunit_suite_name = declared\n")
    for name, content in _HOSTILE.items():
        write_file(tmp_path, name, content)
    ended = target.run(starter)
    assert ended.code == 0, ended.log


def test_the_nearest_declared_configuration_counts(starter: Starter, tmp_path: Path) -> None:
    """A package overrides the settings of its repository, as without Bazel; a file without settings does not."""
    target = Target(tmp_path, {"test_cases.py": _cases(None, "of the repository")}, world_size=2)
    runfiles = tmp_path / "runfiles" / "_main"
    write_file(runfiles, "pyproject.toml", '[tool.pytest.ini_options]\njunit_suite_name = "of the repository"\n')
    write_file(runfiles / "pkg", "pyproject.toml", "[tool.other]\nkey = 1\n")
    assert target.run(starter).code == 0, target.package


def test_a_declared_configuration_that_cannot_be_read_is_refused(starter: Starter, tmp_path: Path) -> None:
    """To go on without the settings would test something else than the target asks for."""
    target = Target(tmp_path, {"test_cases.py": _cases(None)}, world_size=2)
    write_file(target.package, "pytest.ini", "no section\n")
    ended = target.run(starter)
    assert ended.code != 0
    assert "pytest.ini" in ended.log
    assert "Traceback" not in ended.log, ended.log
