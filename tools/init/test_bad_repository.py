"""Repositories that the program cannot change: a text with a way out, and no file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from consumer_setup import cli
from consumer_setup.library import read_library

VERSION = read_library(Path(cli.__file__).absolute().parents[1] / "init.py").version

MINE = 'bazel_dep(name = "dist_testing", version = "{}"{})\n'
PYTHON = 'python = use_extension("@rules_python//python/extensions:python.bzl", "python")\n'
PIP = 'pip = use_extension("@rules_python//python/extensions:pip.bzl", "pip")\n'


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({"WORKSPACE": ""}, (), ["has WORKSPACE and no MODULE.bazel", "How do I start without modules?"]),
        (
            {"MODULE.bazel": MINE.format("0.0.9", "")},
            (),
            [
                f"MODULE.bazel:1: dist_testing is there in version 0.0.9; this is {VERSION}",
                f'Write version = "{VERSION}"',
            ],
        ),
        (
            {"MODULE.bazel": MINE.format(VERSION, ', repo_name = "dt"')},
            (),
            ['repo_name = "dt"', "Remove repo_name from that line"],
        ),
        (
            {"MODULE.bazel": 'bazel_dep(name = "other", version = "1", repo_name = "dist_testing")'},
            (),
            ["the name @dist_testing is taken: it is other", "another name"],
        ),
        (
            {"MODULE.bazel": '\nrule = use_repo_rule("//:a.bzl", "rule")\nrule(name = "pypi")\n'},
            (),
            ["MODULE.bazel:3: the name @pypi is taken", "--hub=NAME"],
        ),
        ({"MODULE.bazel": "wheels = 1\n"}, (), ["MODULE.bazel:1: the variable `wheels` is taken", "Rename it"]),
        ({"MODULE.bazel": "module(\n"}, (), ["MODULE.bazel:1 cannot be understood", "by hand"]),
        ({"MODULE.bazel": "# \udce9\n"}, (), ["it is not UTF-8", "Repair or remove it"]),
        ({"MODULE.bazel": "", ".bazelrc/x": ""}, (), [".bazelrc' cannot be read: Is a directory"]),
        (
            {"MODULE.bazel": PIP + 'pip.parse(hub_name = "a")\npip.parse(hub_name = "b")\n'},
            (),
            ["several hubs of Python packages: a, b", "--hub=NAME"],
        ),
        (
            {"MODULE.bazel": PYTHON + 'python.toolchain(python_version = "3." + MINOR)\n'},
            (),
            ["MODULE.bazel:2: the default version of Python is not clear", "--python=3.12"],
        ),
        (
            {"MODULE.bazel": PYTHON + 'python.toolchain(python_version = "3.11")\n'},
            ("--python=3.12",),
            ["has no such toolchain; it has 3.11", 'python.toolchain(python_version = "3.12")'],
        ),
        ({}, ("--python=3.9",), ["Python 3.9 does not fit", "--python=3.12"]),
        ({}, ("--python=three",), ["Python three does not fit", "--python=3.12"]),
    ],
    ids=[
        "WORKSPACE alone",
        "another version",
        "another name in labels",
        "the name is taken",
        "the hub's name is taken",
        "a variable is taken",
        "no module file",
        "not UTF-8",
        "a folder in the place of a file",
        "several hubs",
        "a computed version",
        "no such toolchain",
        "old Python",
        "no version",
    ],
)
def test_bad_repository(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: Mapping[str, str],
    arguments: Sequence[str],
    said: Sequence[str],
) -> None:
    """Otherwise users get a traceback, or a repository that no longer loads."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert 1 == cli.main([f"--dir={tmp_path}", *arguments])
    captured = capsys.readouterr()
    for part in said:
        assert part in captured.err
    assert "Traceback" not in captured.err
    assert "" == captured.out
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_read_only_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise half of the files are there, and the next run takes them for the user's."""
    # The kernel refuses new files there to every user.
    assert 1 == cli.main(["--dir=/proc/sys"])
    captured = capsys.readouterr()
    assert "cannot be written" in captured.err
    assert "Nothing was changed" in captured.err


def test_one_file_that_cannot_be_written_stops_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise MODULE.bazel names a hub whose lock file and flags do not exist."""
    (tmp_path / "mytests").symlink_to("/proc/sys/mytests")
    assert 1 == cli.main([f"--dir={tmp_path}"])
    assert "cannot be written" in capsys.readouterr().err
    assert ["mytests"] == [path.name for path in tmp_path.iterdir()]


def test_link_out_of_the_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the program changes the flags of all repositories of a team."""
    (tmp_path / "shared.bazelrc").write_text("build --jobs=2\n", encoding="utf-8")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".bazelrc").symlink_to("../shared.bazelrc")
    assert 1 == cli.main([f"--dir={mine}"])
    assert "shared.bazelrc'" in capsys.readouterr().err
    assert "build --jobs=2\n" == (tmp_path / "shared.bazelrc").read_text(encoding="utf-8")
    assert [".bazelrc"] == [path.name for path in mine.iterdir()]


def test_the_library_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise `bazel run //tools/init` in a clone writes into the clone."""
    assert 1 == cli.main([f"--dir={Path(cli.__file__).resolve().parents[3]}"])
    assert "is dist_testing itself" in capsys.readouterr().err


def test_folder_inside_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a command in the wrong folder makes a second repository in the first."""
    (tmp_path / "MODULE.bazel").touch()
    (tmp_path / "sub").mkdir()
    monkeypatch.delenv("BUILD_WORKSPACE_DIRECTORY", raising=False)
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path / "sub"))
    assert 1 == cli.main([])
    assert f"is a folder of the repository '{tmp_path}'" in capsys.readouterr().err
    # From there, by Bazel: the repository.
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    assert 0 == cli.main([])
    assert (tmp_path / "dist_testing.bazelrc").exists()


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise `--check --update` changes files in a CI job."""
    with pytest.raises(SystemExit, match="2"):
        cli.main([f"--dir={tmp_path}", "--check", "--update"])
    assert "--check changes nothing" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
