"""The program of a target runs without Bazel: its environment and arguments come from a file in the runfiles."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dist_testing.core.bazel.main import export_search_path
from dist_testing.core.bazel.protocol import DEBUG_RANK_VARIABLE
from dist_testing.core.ground.errors import SpecError
from dist_testing.core.ground.spec import program_of
from dist_testing.direct import start_directly
from tests.support.children import Target, write_file
from tests.support.starter import Starter

_CASES = """
    import os
    import subprocess
    import sys
    import pytest

    @pytest.mark.distributed
    def test_selected(world):
        assert os.environ["MINE"] == "yes"
        assert os.path.exists("pkg/test_cases.py"), os.getcwd()
        subprocess.run([sys.executable, "-c", "import dist_testing"], check=True)

    def test_other():
        raise AssertionError
"""
# Those of the target, as Bazel splits them.
_ARGUMENTS = ["-v", "-k", "a or b"]
# What a person's shell does not have.
_OF_BAZEL = ("BAZEL_", "DIST_TESTING_", "RUNFILES_", "TEST_", "XML_")


def _program(
    folder: Path,
    *,
    is_program: bool = False,
    arguments: Sequence[str] = ("-v", "-k 'a or b'"),
    text: str = "{}",
    **environment: str,
) -> Path:
    """Write the runfiles of //pkg:cases_gloo, and return them."""
    runfiles = folder / "bin" / "pkg" / "cases_gloo.runfiles"
    spec = {"args": arguments, "environment": {"TEST_WORKSPACE": "_main", **environment}, "is_program": is_program}
    write_file(runfiles / "_main" / "pkg", "cases_gloo.spec.txt", f"{json.dumps(spec)}\n{text}\n")
    return runfiles


def test_program_runs_without_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `bazel-bin/x/y_gloo` does not run by itself, in a container or on another machine."""
    target = Target(tmp_path, {"test_cases.py": _CASES})
    spec = target.env["DIST_TESTING_SPEC"]
    assert spec is not None
    runfiles = _program(tmp_path, text=spec, MINE="yes", arguments=[])
    (tmp_path / "runfiles" / "_main" / "pkg" / "test_cases.py").rename(runfiles / "_main" / "pkg" / "test_cases.py")
    bare: Mapping[str, str | None] = {name: None for name in target.env if name.startswith(_OF_BAZEL)}
    ended = target.run(starter, "-k", "selected", env={**bare, "RUNFILES_DIR": str(runfiles)})
    assert ended.code == 0, ended.log
    assert "1 passed, 1 deselected" in ended.log
    assert not target.xml_file.exists()


@pytest.mark.parametrize("option", ["--rank=1", "--dist-watch"])
def test_only_a_started_program_has_a_terminal(starter: Starter, tmp_path: Path, option: str) -> None:
    """If this fails, `bazel run //x:y -- --rank=1` waits for a terminal, or says that the option is unknown."""
    ended = Target(tmp_path, {"test_cases.py": _CASES}).run(starter, option)
    assert ended.code != 0
    assert f"bazel build //pkg:cases_gloo && bazel-bin/pkg/cases_gloo {option}" in ended.log


@pytest.mark.parametrize(
    ("is_program", "given", "arguments", "rank"),
    [
        (False, ["--rank=1", "-x"], ["-s", *_ARGUMENTS, "--dist-debug-rank=1", "-x"], None),
        (True, ["--rank=1", "--dist-debug-rank=2"], [*_ARGUMENTS, "--rank=1"], "2"),
    ],
)
def test_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_program: bool,
    given: list[str],
    arguments: list[str],
    rank: str | None,
) -> None:
    """If this fails, a program gets options that are not its own, or no rank gets the terminal."""
    environ = {
        "RUNFILES_MANIFEST_FILE": str(_program(tmp_path, is_program=is_program, MINE="theirs") / "MANIFEST"),
        "MINE": "own",
    }
    monkeypatch.chdir(tmp_path)
    assert start_directly(environ, given) == arguments
    assert (environ.get(DEBUG_RANK_VARIABLE), environ["MINE"]) == (rank, "own")
    assert "RUNFILES_MANIFEST_FILE" not in environ
    assert environ["TEST_SRCDIR"] == environ["RUNFILES_DIR"]
    assert Path.cwd().name == "_main"


def test_another_target_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a target that has another one among its data runs that one."""
    runfiles = _program(tmp_path)
    write_file(runfiles / "_main" / "other", "cases_gloo.spec.txt", "{}")
    monkeypatch.chdir(tmp_path)
    assert start_directly({"RUNFILES_DIR": str(runfiles)}, []) == ["-s", *_ARGUMENTS]
    write_file(runfiles / "other_repository" / "pkg", "cases_gloo.spec.txt", "{}")
    with pytest.raises(SpecError, match=r"2 files cases_gloo\.spec\.txt"):
        start_directly({"RUNFILES_DIR": str(runfiles)}, [])


def test_variables_of_the_program_that_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a launcher that Bazel has built cannot start a target."""
    runfiles = _program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(runfiles / "_main" / "main.py")])
    environ = {"RUNFILES_DIR": str(tmp_path / "launcher.runfiles")}
    assert start_directly(environ, []) == ["-s", *_ARGUMENTS]
    assert environ["RUNFILES_DIR"] == str(runfiles)


def test_no_runfiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a main program that was started by hand ends in a traceback."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "main.py")])
    with pytest.raises(SpecError, match=r"nor has RUNFILES_DIR=''\.\n.*\nBuild the target"):
        start_directly({}, [])


def test_label_and_program() -> None:
    """If this fails, error texts name a program that does not exist."""
    labels = {"//:x": "bazel-bin/x", "//a/b:x": "bazel-bin/a/b/x", "@@lib+//a:x": "bazel-bin/external/lib+/a/x"}
    assert {label: program_of(label) for label in labels} == labels


def test_search_path_is_exported(tmp_path: Path) -> None:
    """If this fails, an interpreter that a test starts finds no package, or those of another place first."""
    environ = {"PYTHONPATH": os.pathsep.join(["/given", str(tmp_path)])}
    more = tmp_path / "more"
    more.mkdir()
    standard = os.path.dirname(os.__file__)
    export_search_path(environ, [str(tmp_path), str(more), standard, str(tmp_path / "absent"), "/python.zip"])
    assert environ["PYTHONPATH"] == os.pathsep.join([str(more), "/given", str(tmp_path)])
    export_search_path(environ, [str(more)])
    assert environ["PYTHONPATH"].count(str(more)) == 1
