"""The core works without every add-on: its tests run in a copy of the library that has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dist_testing

_LIBRARY = Path(dist_testing.__file__).parent
_TESTS = Path(__file__).parents[1]
# What is no add-on and no program. Each other file or folder of the library is left out of the copy.
_CORE = (
    *("__init__.py", "ext.py", "run_tests.py", "core", "main"),
    *("backends.json", "py.typed", "versions.json"),
)
_UNIT = (
    *("backends", "bazel", "board", "budget", "clean", "collateral", "collector", "comparison", "conclusion"),
    *("crash_text", "errors", "exits", "isolation", "kept_files", "marker", "outcomes", "process"),
    *("rank_env", "ranks", "report_text", "reporter", "sharding", "skips", "spec", "timings", "watch", "wire"),
)
_PROCESS = ("faults", "pytest_front_end", "spawn", "unittest_front_end")
# Without the add-on that proves hangs, these wait for a deadline of minutes.
_OF_HANGS = "test_hang or stays_away or waits_for_a_message"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the core and all tests."""
    folder = tmp_path_factory.mktemp("core")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_TESTS, folder / "tests", ignore=without)
    for name in _CORE:
        source, target = _LIBRARY / name, folder / "dist_testing" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=without)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib --strict-markers\n")
    return folder


@pytest.mark.parametrize(
    "files",
    [
        [f"unit/test_{name}.py" for name in _UNIT],
        [f"process/test_{name}.py" for name in _PROCESS],
        ["test_pg_wrapper.py"],
        ["core_alone/missing_add_ons.py"],
    ],
    ids=["unit", "process", "pg_wrapper", "missing add-ons"],
)
def test_it_passes_without_add_ons(copy: Path, files: list[str]) -> None:
    """If this fails, no folder can be deleted without harm to the core, or the core silently ignores what is asked."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TEST_", "BAZEL", "DIST_TESTING"))}
    path = os.pathsep.join([str(copy), *(entry for entry in sys.path if entry and Path(entry) != _LIBRARY.parent)])
    command = [sys.executable, "-m", "pytest", "-p", "dist_testing.core.pytest.plugin", "-q", "-rfE", "--tb=short"]
    done = subprocess.run(
        [*command, "-k", f"not ({_OF_HANGS})", *(f"tests/{file}" for file in files)],
        cwd=copy,
        env=env | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
