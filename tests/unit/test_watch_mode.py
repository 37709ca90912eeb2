"""The parts of the watch mode that need no process: changed files, imports, and what cannot be copied."""

from __future__ import annotations

import atexit
import os
import py_compile
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.watch.files import Files, forget_compiled, is_third_party
from dist_testing.watch.graph import Graph, syntax_error
from dist_testing.watch.inert import Inertness
from dist_testing.watch.knowledge import Knowledge, Project
from dist_testing.watch.messages import Collected, LoadConftests, Module, Preload, Reported, RunTests
from dist_testing.watch.pytest_session import check_watchable
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
    assert files.add_tree(str(tmp_path)) == []
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
    """If this fails, the second of two saves in one second runs the code of the first."""
    source, other = write_file(tmp_path, "one.py", "A = 1"), write_file(tmp_path, "one_more.py", "")
    compiled = [Path(py_compile.compile(str(path)) or "") for path in (source, other)]
    of_pytest = compiled[0].with_name(f"{compiled[0].stem}-pytest-9.0.0.pyc")
    of_pytest.touch()
    forget_compiled([str(source), str(tmp_path / "absent.py")])
    assert [path.exists() for path in (*compiled, of_pytest)] == [False, True, False]


def test_third_party_files() -> None:
    """If this fails, the watch reads all of torch after each run, or misses a library of the user."""
    assert is_third_party(pytest.__file__)
    assert is_third_party(tempfile.__file__)
    assert is_third_party("<frozen importlib>")
    assert not is_third_party("/home/user/project/library.py")


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


def _graph(folder: Path) -> Graph:
    graph = Graph()
    modules = {"package": "package/__init__.py", "package.one": "package/one.py", "package.two": "package/two.py"}
    graph.learn({name: str(folder / file) for name, file in modules.items()}, [str(folder)])
    return graph


def test_imports_are_followed(tmp_path: Path) -> None:
    """If this fails, a change does not run the tests that it breaks."""
    for name, source in (
        ("package/__init__.py", ""),
        ("package/one.py", "from . import two"),
        ("package/two.py", "def f():\n    import late.part"),
        ("late/__init__.py", ""),
        ("late/part.py", "import torch, os"),
        ("plugin.py", ""),
        ("conftest.py", "pytest_plugins = ['plugin']"),
        ("test_one.py", "from package.one import anything"),
        ("test_two.py", "import package"),
        ("sub/test_three.py", "import beside"),
        ("sub/beside.py", ""),
    ):
        write_file(tmp_path, name, source)
    graph = _graph(tmp_path)
    tests = {str(tmp_path / name) for name in ("test_one.py", "test_two.py", "sub/test_three.py")}

    def affected(*names: str) -> set[str]:
        found = graph.affected({str(tmp_path / name) for name in names}, tests)
        return {str(Path(path).relative_to(tmp_path)) for path in found}

    assert affected("package/two.py") == {"test_one.py"}
    assert affected("late/part.py") == affected("late/__init__.py") == {"test_one.py"}
    assert affected("package/__init__.py") == {"test_one.py", "test_two.py"}
    assert affected("plugin.py") == affected("conftest.py") == {"test_one.py", "test_two.py", "sub/test_three.py"}
    assert affected("sub/beside.py") == affected("sub/conftest.py") == {"sub/test_three.py"}
    assert affected("test_two.py", "sub/beside.py") == {"test_two.py", "sub/test_three.py"}
    assert affected("test_new.py") == set()
    assert affected("read_in_another_way.py") == {"test_one.py", "test_two.py", "sub/test_three.py"}
    write_file(tmp_path, "test_two.py", "import package.one")
    graph.forget([str(tmp_path / "test_two.py")])
    assert affected("package/two.py") == {"test_one.py", "test_two.py"}


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
    refused: tuple[tuple[Mapping[str, object], str], ...] = (
        ({"numprocesses": 2}, "--dist-watch with -n."),
        ({"dist_debug_rank": "0"}, "--dist-watch with --dist-debug-rank."),
        ({"lf": True}, "--dist-watch with --lf."),
        ({"cov_source": ["package"]}, "--dist-watch with --cov."),
        ({"collectonly": True}, "--dist-watch with --collect-only."),
    )
    for given, said in refused:
        with pytest.raises(UsageError, match=said):
            check_watchable(_config(given))
    with pytest.raises(UsageError, match="comes from a configuration file"):
        check_watchable(_config({}, ()))
    with pytest.raises(UsageError, match="without pytest's capture"):
        check_watchable(_config({}, blocked="capturemanager"))
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="is rank 1 of 2"):
        check_watchable(_config({}))


def test_what_a_copy_would_share_is_named(tmp_path: Path) -> None:
    """If this fails, each run repeats the clean-up of the first, or writes into its files."""
    # Other tests of this process may have left something.
    present = Inertness(may_hold=False).obstacles()

    def found_by(before: Inertness) -> list[str]:
        return [text for text in before.obstacles() if text not in present]

    assert found_by(Inertness(may_hold=False)) == []

    before = Inertness(may_hold=False)
    folder = tempfile.TemporaryDirectory(dir=tmp_path)
    (found,) = found_by(before)
    assert "TemporaryDirectory" in found
    folder.cleanup()

    before = Inertness(may_hold=False)
    atexit.register(print)
    atexit.unregister(print)
    (found,) = found_by(before)
    assert found.startswith(f"{__file__}:")

    before = Inertness(may_hold=False)
    with socket.socket(), (tmp_path / "log").open("w"):
        found = "; ".join(found_by(before))
    assert "socket:" in found
    assert f"{tmp_path / 'log'} is open" in found


def test_only_unchanged_modules_are_imported_ahead(tmp_path: Path) -> None:
    """If this fails, a module that depends on a changed one is old, or third-party code is imported in each run."""
    numpy = Module("numpy", "/x/site-packages/numpy/__init__.py", is_third_party=True, is_movable=True)
    one, two, late = (
        Module(name, str(write_file(tmp_path, f"{name}.py", source)), is_third_party=False, is_movable=is_movable)
        for name, source, is_movable in (("one", "", True), ("two", "import one", True), ("late", "", False))
    )
    test = str(write_file(tmp_path, "test_a.py", "import two"))
    project = Project(str(tmp_path), str(tmp_path), ("test_a.py",), "", has_package_names=False)
    known = Knowledge(project, [])
    events = [
        Collected((test,), ("test_a.py::test_b", "test_a.py::test_c"), (numpy, one, two, late), (str(tmp_path),)),
        Reported("test_a.py::test_b", "failed"),
        Reported("test_a.py::test_c", "passed"),
    ]
    assert known.learn(events, RunTests()) == {test, one.file, two.file, late.file}
    assert list(known.failed) == ["test_a.py::test_b"]
    third_party, library, last = known.orders()
    assert isinstance(third_party, Preload)
    assert third_party.modules == ("numpy",)
    assert isinstance(library, Preload)
    assert library.modules == ("one", "two")
    assert last == LoadConftests()
    known.hot.add(one.file)
    assert known.orders() == [third_party, LoadConftests()]

    known.learn([Collected((test,), (), (), ()), Reported("test_a.py::test_c", "passed")], RunTests(pattern="c"))
    assert list(known.failed) == ["test_a.py::test_b"], "it was not selected"
    known.learn([Collected((test,), (), (), ()), Reported("test_a.py::test_c", "passed")], RunTests())
    assert not known.failed, "it was renamed"
