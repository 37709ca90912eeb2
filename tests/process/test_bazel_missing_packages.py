"""Under Bazel, a package of the library that is not in the runfiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dist_testing

_FLAG = "--@dist_testing//dist_testing/config:psutil="


def _run(*folders: Path) -> subprocess.CompletedProcess[str]:
    """Start the main program on an interpreter without packages, besides those of the folders."""
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    path = ":".join(map(str, (main.parents[2], *folders)))
    env = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TEST_TARGET": "//pkg:case_gloo"}
    # -S: without the site-packages of this interpreter.
    return subprocess.run([sys.executable, "-S", str(main)], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("state", ["empty", "not there"])
def test_wheels_that_did_not_arrive_name_the_flag(tmp_path: Path, state: str) -> None:
    """If it fails, a user of an executor reads of psutil, which is no dependency of theirs."""
    folder = tmp_path / "site-packages"
    if state == "empty":
        folder.mkdir()
    done = _run(folder)
    assert done.returncode == 1
    subject, cause, way_out = done.stderr.splitlines()
    assert subject == f"//pkg:case_gloo: No module named 'psutil'; {folder} is {state}."
    assert "Bazel does not bring a directory to its runfiles" in cause
    assert "--config=remote, or --@dist_testing//wheels:form=archive" in way_out


def test_a_target_without_the_package_names_its_flag(tmp_path: Path) -> None:
    """A hub of another kind has no such folder, and a folder with files did arrive."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "iniconfig.py").touch()
    done = _run(folder)
    assert done.returncode == 1
    subject, _, way_out = done.stderr.splitlines()
    assert subject.startswith("//pkg:case_gloo: No module named 'psutil' (sys.path: ")
    assert _FLAG in way_out


def test_a_target_without_runfiles_names_its_flag() -> None:
    """pip does not install it with the library, so a hub that is made from the library's needs may lack it."""
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    # Python's own way to say that a module is not there.
    body = f"import runpy, sys; sys.modules['runfiles'] = None; runpy.run_path({str(main)!r}, run_name='__main__')"
    env = {"PYTHONPATH": ":".join([str(main.parents[2]), *sys.path]), "TEST_TARGET": "//pkg:case_gloo"}
    done = subprocess.run([sys.executable, "-c", body], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    subject, _, way_out = done.stderr.splitlines()
    assert subject.startswith("//pkg:case_gloo: import of runfiles halted")
    assert "--@dist_testing//dist_testing/config:runfiles=" in way_out


def test_a_fault_inside_a_package_keeps_its_traceback(tmp_path: Path) -> None:
    """If it fails, a package that lacks one of its own dependencies looks like a wrong flag."""
    (tmp_path / "psutil.py").write_text("import a_module_that_nobody_has\n", encoding="utf-8")
    done = _run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'a_module_that_nobody_has'\n")
    assert "Traceback" in done.stderr
