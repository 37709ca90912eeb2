"""The parts of the watch mode that need no process: changed files, and what they concern."""

from __future__ import annotations

import json
import os
import py_compile
import runpy
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.watch.loop import Files, forget_compiled, is_third_party, sources_of
from dist_testing.watch.pytest_session import check_watchable, watched_arguments
from dist_testing.watch.run import Order, Project, Told, syntax_error
from tests.support.children import write_file


def test_only_new_content_is_a_change(tmp_path: Path) -> None:
    """If this fails, `touch` runs tests, or a save by rename or a removed file does not."""
    files = Files()
    one, other = write_file(tmp_path, "one.py", "A = 1"), write_file(tmp_path, "other.py", "")
    files.add([str(one), str(other)], time.time_ns())
    assert not files.changed()
    os.utime(one, ns=(5, 5))
    assert not files.changed()
    write_file(tmp_path, "new.py", "A = 2").replace(one)
    assert files.changed() == {str(one)}
    other.unlink()
    assert files.changed() == {str(other)}
    write_file(tmp_path, "other.py", "")
    assert files.changed() == {str(other)}
    write_file(tmp_path, "created.py", "")
    assert files.changed() == {str(tmp_path / "created.py")}
    write_file(tmp_path, "notes.txt", "")
    write_file(tmp_path, ".#one.py", "")
    assert not files.changed()


def test_a_tree_is_watched_for_new_folders(tmp_path: Path) -> None:
    """If this fails, a new test in a new folder never runs; or a virtual environment is watched."""
    files = Files()
    write_file(tmp_path, "venv/pyvenv.cfg", "")
    write_file(tmp_path, "venv/lib.py", "")
    files.add_folder(str(tmp_path), is_tree=True)
    assert not files.changed()
    new = write_file(tmp_path, "deep/er/test_new.py", "")
    assert files.changed() == {str(new)}
    write_file(tmp_path, "venv/more.py", "")
    assert not files.changed()


def test_a_file_that_changed_while_it_was_read_is_told(tmp_path: Path) -> None:
    """If this fails, a save between an import and the first look at the file is lost."""
    path = str(write_file(tmp_path, "one.py", ""))
    assert Files().add([path], time.time_ns() + 1_000_000_000) == set()
    assert Files().add([path], os.stat(path).st_mtime_ns) == {path}


def test_compiled_files_of_a_changed_source_are_removed(tmp_path: Path) -> None:
    """If this fails, the second of two saves in one second runs the code of the first, or a save ends the watch."""
    source, other = write_file(tmp_path, "one.py", "A = 1"), write_file(tmp_path, "one_more.py", "")
    compiled = [Path(py_compile.compile(str(path)) or "") for path in (source, other)]
    of_pytest = compiled[0].with_name(f"{compiled[0].stem}-pytest-9.0.0.pyc")
    of_pytest.touch()
    # As one in a folder of another user.
    compiled[0].with_name(f"{source.stem}.kept.pyc").mkdir()
    forget_compiled([str(source), str(tmp_path / "absent.py")])
    assert [path.exists() for path in (*compiled, of_pytest)] == [False, True, False]


@pytest.mark.parametrize(
    ("source", "said"),
    [("a = (\n", ":1: '(' was never closed: a = ("), ("a = 1\n\0", ":"), ("é = '\xff'", ""), ("x = 1\n", "")],
)
def test_syntax_errors_name_the_line(tmp_path: Path, source: str, said: str) -> None:
    """If this fails, the user has to look for the line that does not parse."""
    path = write_file(tmp_path, "one.py", source)
    assert syntax_error(str(path)).startswith(f"{path}{said}" if said else "")
    assert bool(syntax_error(str(path))) == bool(said)
    assert not syntax_error(str(tmp_path / "absent.py"))


def _project(folder: Path, *arguments: str) -> Project:
    patterns = ("test_*.py", "checks/*.py")
    return Project(str(folder), str(folder), arguments, "", has_package_names=False, patterns=patterns)


def test_the_tests_of_a_change(tmp_path: Path) -> None:
    """If this fails, a change does not run the tests that it breaks, or the save of a test file runs all tests."""
    names = ("test_one.py", "test_two.py", "sub/test_three.py", "checks/four.py", "doctested.py")
    for name, source in zip(names, ("", "from test_one import *", "", "", ""), strict=True):
        write_file(tmp_path, name, source)
    results = _project(tmp_path)
    results.learn(Told(tests={str(tmp_path / name) for name in names}), Order())

    def affected(*changed: str) -> set[str]:
        left_out = results.unaffected([str(tmp_path / name) for name in changed])
        return {name for name in names if str(tmp_path / name) not in left_out}

    assert affected("test_one.py") == {"test_one.py", "test_two.py"}, "the second names the first"
    assert affected("test_two.py") == {"test_two.py"}
    assert affected("test_two.py", "sub/test_three.py") == {"test_two.py", "sub/test_three.py"}
    assert affected("sub/conftest.py") == {"sub/test_three.py"}
    assert affected("conftest.py") == set(names)
    assert affected("checks/four.py") == {"checks/four.py"}
    assert affected("doctested.py") == set(names), "tests may import a module that has tests of its own"
    assert affected("test_new.py") == set()
    assert affected("test_two.py", "library.py") == set(names)


def test_the_files_of_an_error_are_known(tmp_path: Path) -> None:
    """If this fails, a save that mends a module whose import fails does not run the tests."""
    broken = write_file(tmp_path, "broken.py", "x = 1 / 0")
    unparsed = write_file(tmp_path, "unparsed.py", "x = (")

    def error_of(path: Path) -> BaseException:
        with pytest.raises((ZeroDivisionError, SyntaxError)) as info:
            runpy.run_path(str(path))
        return info.value

    outer = ValueError()
    outer.__cause__ = error_of(broken)
    assert sources_of(outer) == {str(broken), __file__}
    assert sources_of(error_of(unparsed)) == {str(unparsed), __file__}
    assert sources_of(None) == set()
    # The watch must not read all of torch after each run.
    assert all(map(is_third_party, (pytest.__file__, tempfile.__file__, "<frozen importlib>")))
    assert not is_third_party("/home/user/project/library.py")


def _config(
    given: Mapping[str, object], arguments: tuple[str, ...] = ("--dist-watch",), blocked: str = ""
) -> pytest.Config:
    parts = SimpleNamespace(
        known_args_namespace=SimpleNamespace(**given),
        invocation_params=SimpleNamespace(args=arguments),
        pluginmanager=SimpleNamespace(is_blocked=lambda name: name == blocked),
    )
    return cast("pytest.Config", parts)


def test_what_cannot_be_watched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, an option has no effect in watch mode, or every pytest of a project waits for saves."""
    check_watchable(_config({"usepdb": False, "numprocesses": None, "lf": False}))
    check_watchable(_config({"cov_source": ["package"], "no_cov": True}))
    refused: tuple[tuple[Mapping[str, object], str], ...] = (
        ({"numprocesses": 2}, "--dist-watch with -n."),
        ({"dist_debug_rank": "0"}, "--dist-watch with --dist-debug-rank."),
        ({"lf": True}, "--dist-watch with --lf."),
        ({"cov_source": ["package"], "no_cov": False}, "--dist-watch with --cov."),
        ({"collectonly": True}, "--dist-watch with --collect-only."),
    )
    configs = [(_config(given), said) for given, said in refused]
    configs.append((_config({}, ()), "comes from a configuration file"))
    configs.append((_config({}, blocked="capturemanager"), "without pytest's capture"))
    for config, said in configs:
        with pytest.raises(UsageError, match=said):
            check_watchable(config)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="is rank 1 of 2"):
        check_watchable(_config({}))


def test_the_watched_paths_are_those_that_pytest_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, no save runs a test where `testpaths` has a pattern, or in another folder than pytest's root."""
    for name in ("pkg_b/tests", "pkg_a/tests"):
        (tmp_path / name).mkdir(parents=True)

    def arguments(directory: Path, *named: str, testpaths: tuple[str, ...] = ("pkg_*/tests",)) -> tuple[str, ...]:
        monkeypatch.chdir(directory)
        parts = SimpleNamespace(
            known_args_namespace=SimpleNamespace(file_or_dir=list(named), pyargs=False),
            invocation_params=SimpleNamespace(dir=directory),
            rootpath=tmp_path,
            getini=lambda name: list(testpaths),
        )
        return watched_arguments(cast("pytest.Config", parts))

    assert arguments(tmp_path) == ("pkg_a/tests", "pkg_b/tests")
    assert arguments(tmp_path, "pkg_b") == ("pkg_b",)
    assert arguments(tmp_path, testpaths=("absent",)) == (".",)
    assert arguments(tmp_path / "pkg_a") == (".",), "testpaths are those of the root"


def test_failed_tests_are_remembered(tmp_path: Path) -> None:
    """If this fails, a failure is forgotten while it was not mended, or reported when its test is gone."""
    test = str(write_file(tmp_path, "test_a.py", ""))
    results = _project(tmp_path, "test_a.py")

    def learn(order: Order, code: int | None = 1, **outcomes: str) -> list[str]:
        told = Told(tests={test}, code=code)
        for name, outcome in outcomes.items():
            told.take(json.dumps({"test": f"test_a.py::{name}", "outcome": outcome}).encode())
        results.learn(told, order)
        return [node_id.removeprefix("test_a.py::") for node_id in results.failed]

    assert learn(Order(), b="failed", c="passed") == ["b"]
    assert learn(Order(pattern="c"), c="failed") == ["b", "c"], "b was not selected"
    assert learn(Order(), None, c="passed", d="failed") == ["b", "d"], "the run was killed before b"
    assert learn(Order(), 2, d="passed") == ["b"], "the run was stopped before b"
    assert learn(Order(), 0, c="passed") == [], "b was renamed"
