"""A new repository: the files of docs/consumers.md, and nothing else."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from consumer_setup import cli
from consumer_setup.library import read_library

PROGRAM = Path(cli.__file__).absolute().parents[1] / "init.py"


def _tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_new_repository_is_the_one_of_the_page(tmp_path: Path) -> None:
    """Otherwise the page and the program teach two repositories, and one of them is not tested."""
    # As the page asks for it: a clone beside the new folder.
    (tmp_path / "dist_testing").symlink_to(PROGRAM.parents[2])
    program = tmp_path / "dist_testing" / "tools" / "init" / "init.py"
    mine = tmp_path / "mine"
    assert 0 == cli.main([f"--dir={mine}"], program)
    page = (PROGRAM.parents[2] / "docs" / "consumers.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^<!-- mine/(\S+) -->\n```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    shown["dist_testing.bazelrc"] = (PROGRAM.parents[2] / "dist_testing.bazelrc").read_text(encoding="utf-8")
    assert {"MODULE.bazel", ".bazelrc", "mytests/BUILD.bazel", "mytests/test_ring.py"} < set(shown)
    assert shown == _tree(mine)


def test_each_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise users look for what the program has done to their repository."""
    assert 0 == cli.main([f"--dir={tmp_path}"])
    told = capsys.readouterr().out
    assert told.startswith(f"init: in '{tmp_path}'\n")
    for name in _tree(tmp_path):
        assert f"init: wrote {name}\n" in told
    assert "init: next: uv pip compile " in told
    assert "init: next: bazel test --test_output=all //mytests:ring_gloo\n" in told


def test_a_new_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a typing error in the path makes a repository that nobody looks for."""
    folder = tmp_path / "typo"
    assert 0 == cli.main([f"--dir={folder}"])
    assert capsys.readouterr().out.startswith(f"init: a new folder, '{folder}'\n")


def test_hub_may_be_named_as_in_labels(tmp_path: Path) -> None:
    """Otherwise `@@pypi//torch` stands in the files."""
    assert 0 == cli.main([f"--dir={tmp_path / 'as_label'}", "--hub=@pypi"])
    assert 0 == cli.main([f"--dir={tmp_path / 'as_name'}", "--hub=pypi"])
    assert _tree(tmp_path / "as_label") == _tree(tmp_path / "as_name")


def test_files_have_the_modes_of_other_files(tmp_path: Path) -> None:
    """Otherwise colleagues and CI cannot read the new files."""
    mask = os.umask(0o022)
    try:
        assert 0 == cli.main([f"--dir={tmp_path}"])
    finally:
        os.umask(mask)
    assert {0o644} == {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}


def test_second_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise each run adds the same lines again."""
    assert 0 == cli.main([f"--dir={tmp_path}"])
    before = _tree(tmp_path)
    capsys.readouterr()
    assert 0 == cli.main([f"--dir={tmp_path}"])
    assert before == _tree(tmp_path)
    told = capsys.readouterr().out
    assert "init: wrote" not in told
    assert "init: added" not in told
    # The lock file is still to be made.
    assert "init: next: uv pip compile " in told


def test_clone_elsewhere_is_named_by_its_path(tmp_path: Path) -> None:
    """Otherwise Bazel does not find the library."""
    assert 0 == cli.main([f"--dir={tmp_path / 'a' / 'b'}"])
    module = (tmp_path / "a" / "b" / "MODULE.bazel").read_text(encoding="utf-8")
    assert f'path = "{read_library(PROGRAM).clone}"' in module


def test_other_python_and_hub(tmp_path: Path) -> None:
    """Otherwise a team on another Python edits six places by hand."""
    assert 0 == cli.main([f"--dir={tmp_path}", "--python=3.12", "--hub=packages"])
    text = "".join(_tree(tmp_path)[name] for name in ("MODULE.bazel", ".bazelrc", "mytests/BUILD.bazel"))
    assert '"3.12"' in text
    assert '"@python_3_12_host//:python"' in text
    assert 'use_repo(wheels, "packages")' in text
    assert 'dist_testing.packages(hub = "@packages")' in text
    assert not re.search("3.11|pypi", text)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ('#!/bin/sh\necho "$@" >arguments; echo "torch==1" >requirements.txt', 0, ""),
        ("#!/bin/sh\necho no such version >&2; exit 4", 1, "ended with status 4"),
        (None, 1, "uv was not found on PATH"),
    ],
    ids=["it works", "it fails", "it is missing"],
)
def test_lock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str | None,
    status: int,
    said: str,
) -> None:
    """Otherwise a resolver that fails looks like a ready repository."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if script:
        (programs / "uv").write_text(script, encoding="utf-8")
        (programs / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    mine = tmp_path / "mine"
    assert status == cli.main([f"--dir={mine}", "--lock"])
    captured = capsys.readouterr()
    assert said in captured.err
    assert (mine / "mytests" / "BUILD.bazel").exists()
    if status == 0:
        arguments = (mine / "arguments").read_text(encoding="utf-8").split()
        assert ["pip", "compile", "--generate-hashes", "--python-version", "3.11"] == arguments[:5]
        assert ["requirements.in", "-o", "requirements.txt"] == arguments[-3:]
        assert "next: uv" not in captured.out
