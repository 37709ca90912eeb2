"""`--check`: what no longer fits the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from consumer_setup import cli
from consumer_setup.library import read_library

VERSION = read_library(Path(cli.__file__).absolute().parents[1] / "init.py").version


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def _flags_in_place_of_the_tag(command: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        _replace("MODULE.bazel", "dist_testing.packages(", "python.other(")(folder)
        flags = "".join(
            f"{command} --@dist_testing//dist_testing/config:{name}=@pypi//{name}\n"
            for name in ("torch", "pytest", "psutil", "runfiles")
        )
        _replace(".bazelrc", "import ", flags + "import ")(folder)

    return change


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _repository(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == cli.main([f"--dir={folder}"])
    packages = ("bazel-runfiles==1.7.0", "psutil==7.0", "pytest==9.0", "torch==2.13.0+cpu")
    (folder / "requirements.txt").write_text("\n".join(packages), encoding="utf-8")
    (folder / ".bazelversion").write_text("8.4.2\n", encoding="utf-8")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _replace("dist_testing.bazelrc", "test --local_resources=gpu=1", "test --local_resources=gpu=8"),
            [
                f"dist_testing.bazelrc differs from that of dist_testing {VERSION}",
                "    -test --local_resources=gpu=8\n    +test --local_resources=gpu=1",
                " --update. Flags of your own belong into .bazelrc",
            ],
        ),
        (_remove("dist_testing.bazelrc"), ["dist_testing.bazelrc does not exist", "Write it: "]),
        (
            _replace("dist_testing.bazelrc", "\n", "\r\n"),
            ["dist_testing.bazelrc differs", "The line ends differ"],
        ),
        (
            _replace("dist_testing.bazelrc", "# ", "## "),
            ["dist_testing.bazelrc differs", "    ... ", " more lines"],
        ),
        (
            _replace("MODULE.bazel", f'version = "{VERSION}"', 'version = "0.0.9"'),
            ["MODULE.bazel:1: dist_testing is there in version 0.0.9", f'Write version = "{VERSION}"'],
        ),
        (
            _replace("MODULE.bazel", '(name = "dist_testing"', '(name = "dist_testing2"'),
            ["MODULE.bazel has no bazel_dep on dist_testing", "Add it: "],
        ),
        (
            _replace("MODULE.bazel", "dist_testing.packages(hub =", "dist_testing.packages(torch ="),
            ["MODULE.bazel does not name pytest, psutil, runfiles for the library", "Add dist_testing.packages(): "],
        ),
        # In a configuration a flag counts only sometimes.
        (
            _flags_in_place_of_the_tag("common:x"),
            ["MODULE.bazel does not name torch, pytest, psutil, runfiles for the library"],
        ),
        (
            _replace(".bazelrc", "import %workspace%/dist_testing.bazelrc", ""),
            [".bazelrc does not import dist_testing.bazelrc", "import %workspace%/dist_testing.bazelrc"],
        ),
        (_replace(".bazelversion", "8.4.2", "10.0.0"), [".bazelversion asks for Bazel 10.0.0", "works with 7.4 to 9"]),
        (_replace(".bazelversion", "8.4.2", "7.3.1"), [".bazelversion asks for Bazel 7.3.1", "works with 7.4 to 9"]),
        (_replace("requirements.txt", "psutil", "other"), ["requirements.txt lacks psutil", "lock again"]),
        (_remove("requirements.txt"), ["requirements.txt, the lock file of @pypi, does not exist"]),
    ],
)
def test_drift_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], said: list[str]
) -> None:
    """Otherwise users learn of an old copy from a flag that does not work."""
    _repository(tmp_path, capsys)
    change(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert 1 == cli.main([f"--dir={tmp_path}", "--check"])
    captured = capsys.readouterr()
    for part in said:
        assert part in captured.err
    # One difference is one complaint.
    assert 1 == captured.err.count("init: ")
    assert "" == captured.out
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", ["7.4.0", "7.x", "8", "8.4.2", "latest", "7.7.1", "myfork/7.0"])
def test_repository_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str) -> None:
    """Otherwise a CI job with the check is always red."""
    _repository(tmp_path, capsys)
    (tmp_path / ".bazelversion").write_text(version, encoding="utf-8")
    assert 0 == cli.main([f"--dir={tmp_path}", "--check"])
    assert f"fits dist_testing {VERSION}" in capsys.readouterr().out


def test_repository_with_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a repository from before the tag has to change."""
    _repository(tmp_path, capsys)
    _flags_in_place_of_the_tag("common")(tmp_path)
    assert 0 == cli.main([f"--dir={tmp_path}", "--check"])


def test_repository_without_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise repositories with WORKSPACE cannot see that their copy is old."""
    _repository(tmp_path, capsys)
    _flags_in_place_of_the_tag("common")(tmp_path)
    (tmp_path / "MODULE.bazel").rename(tmp_path / "WORKSPACE")
    assert 0 == cli.main([f"--dir={tmp_path}", "--check"])
    (tmp_path / "dist_testing.bazelrc").write_text("", encoding="utf-8")
    assert 1 == cli.main([f"--dir={tmp_path}", "--check"])


def test_no_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a check in the wrong folder passes."""
    assert 1 == cli.main([f"--dir={tmp_path}", "--check"])
    assert "has no MODULE.bazel" in capsys.readouterr().err
