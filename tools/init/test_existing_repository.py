"""A repository that exists: the program adds, and changes no line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from consumer_setup import cli
from consumer_setup.library import read_library

VERSION = read_library(Path(cli.__file__).absolute().parents[1] / "init.py").version

DEPENDENCY = 'bazel_dep(name = "rules_python", version = "1.4.0")\n'
PIP = """\
pip = use_extension("@rules_python//python/extensions:pip.bzl", "pip")
pip.parse(hub_name = "third_party", python_version = "3.12", requirements_lock = "//deps:lock.txt")
use_repo(pip, "third_party")
"""


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_bytes().decode()


def test_own_lines_stay_and_missing_ones_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the program damages a repository that works."""
    own = {
        "MODULE.bazel": 'module(name = "own")\n\n' + DEPENDENCY.replace("1.4.0", "1.2.0").rstrip("\n"),
        ".bazelrc": "# Ours.\ntest --test_output=errors\n",
        ".gitignore": "/bazel-*\nbuild/\n",
        "BUILD": 'exports_files(["a"])\n',
    }
    _write(tmp_path, own)
    assert 0 == cli.main([f"--dir={tmp_path}"])
    for name, text in own.items():
        assert _text(tmp_path, name).startswith(text), name
    module = _text(tmp_path, "MODULE.bazel")
    assert 1 == module.count('name = "rules_python"')
    assert 1 == module.count('bazel_dep(name = "dist_testing"')
    assert "wheels.lock(" in module
    ignored = _text(tmp_path, ".gitignore")
    assert 1 == ignored.count("/bazel-*")
    assert ignored.endswith("/dist_testing_host.bazelrc\n")
    # Bazel would take it instead of BUILD.
    assert not (tmp_path / "BUILD.bazel").exists()
    told = capsys.readouterr().out
    assert "init: added to MODULE.bazel (" in told
    assert "init: left BUILD.bazel: the root is a package already\n" in told


def test_hub_that_is_there_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the repository has two torches."""
    _write(
        tmp_path, {"MODULE.bazel": DEPENDENCY + PIP, "deps/lock.txt": "torch==2.13.0 --hash=sha256:0\nPsutil==7.0\n"}
    )
    assert 0 == cli.main([f"--dir={tmp_path}"])
    module = _text(tmp_path, "MODULE.bazel")
    assert "wheels.lock(" not in module
    assert "python.toolchain" not in module
    assert 'dist_testing.packages(hub = "@third_party")\n' in module
    assert "/config:" not in _text(tmp_path, ".bazelrc")
    assert '"@third_party//torch"' in _text(tmp_path, "mytests/BUILD.bazel")
    assert not (tmp_path / "requirements.in").exists()
    assert not (tmp_path / ".gitignore").exists()
    told = capsys.readouterr().out
    assert "it has a hub of packages, @third_party" in told
    assert "next: deps/lock.txt lacks bazel_runfiles, pytest: add them" in told


def test_new_hub_beside_another_on_request(tmp_path: Path) -> None:
    """Otherwise a team with a slow hub has no way to the fast one."""
    _write(tmp_path, {"MODULE.bazel": DEPENDENCY + PIP})
    assert 0 == cli.main([f"--dir={tmp_path}", "--hub=dist_pypi"])
    module = _text(tmp_path, "MODULE.bazel")
    assert 'use_repo(wheels, "dist_pypi")' in module
    assert 'dist_testing.packages(hub = "@dist_pypi")\n' in module


def test_names_of_the_repository_are_used(tmp_path: Path) -> None:
    """Otherwise the new lines name a repository or a Python that does not exist there."""
    module = """\
bazel_dep(name = "rules_python", version = "1.4.0", repo_name = "rules_py")
VERSION = "3.12"
py = use_extension("@rules_py//python/extensions:python.bzl", "python")
py.toolchain(python_version = "3.10")
py.toolchain(is_default = True, python_version = VERSION)
"""
    _write(tmp_path, {"MODULE.bazel": module})
    assert 0 == cli.main([f"--dir={tmp_path}"])
    added = _text(tmp_path, "MODULE.bazel").removeprefix(module)
    assert 'use_repo(py, "python_3_12_host")' in added
    assert '"@python_3_12_host//:python"' in added
    assert "toolchain(" not in added
    assert "rules_python" not in added


def test_included_files_count(tmp_path: Path) -> None:
    """Otherwise what a large repository declares in another file is added a second time."""
    _write(
        tmp_path,
        {
            "MODULE.bazel": 'include("//deps:python.MODULE.bazel")\n',
            "deps/python.MODULE.bazel": DEPENDENCY + PIP,
            ".bazelrc": "import %workspace%/deps/flags.bazelrc\n",
            "deps/flags.bazelrc": "\n".join(
                f"common --@dist_testing//dist_testing/config:{flag}=@third_party//x"
                for flag in ("torch", "pytest", "psutil", "runfiles")
            ),
        },
    )
    assert 0 == cli.main([f"--dir={tmp_path}"])
    module = _text(tmp_path, "MODULE.bazel")
    assert "rules_python" not in module
    assert 'bazel_dep(name = "dist_testing"' in module
    # The flags name them all.
    assert "packages(" not in module
    added = _text(tmp_path, ".bazelrc")
    assert "config:" not in added
    assert added.endswith("import %workspace%/dist_testing.bazelrc\n")


def test_line_ends_are_kept(tmp_path: Path) -> None:
    """Otherwise a file has two kinds of line ends."""
    _write(tmp_path, {"MODULE.bazel": DEPENDENCY.replace("\n", "\r\n"), ".bazelrc": "build --jobs=2\r\n"})
    assert 0 == cli.main([f"--dir={tmp_path}"])
    for name in ("MODULE.bazel", ".bazelrc"):
        text = _text(tmp_path, name)
        assert text.count("\r\n") == text.count("\n") > 3


def test_own_package_and_changed_copy_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the program overwrites what it does not own."""
    own = {"mytests/BUILD": "# Ours.\n", "dist_testing.bazelrc": "test --local_resources=gpu=8\n"}
    _write(tmp_path, {"MODULE.bazel": DEPENDENCY, **own})
    assert 0 == cli.main([f"--dir={tmp_path}"])
    for name, text in own.items():
        assert text == _text(tmp_path, name)
    assert ["BUILD"] == [path.name for path in (tmp_path / "mytests").iterdir()]
    told = capsys.readouterr().out
    assert f"init: left dist_testing.bazelrc: it differs from that of {VERSION}" in told
    assert "init: left mytests/: it exists" in told
    # Only the word of the user replaces it.
    assert 0 == cli.main([f"--dir={tmp_path}", "--update"])
    assert "init: replaced dist_testing.bazelrc\n" in capsys.readouterr().out
    assert 0 == cli.main([f"--dir={tmp_path}", "--update"])
    assert f"dist_testing.bazelrc: it is that of {VERSION}" in capsys.readouterr().out


def test_links_within_the_repository_are_followed(tmp_path: Path) -> None:
    """Otherwise a link becomes a file, and the file behind it no longer counts."""
    _write(tmp_path, {"MODULE.bazel": DEPENDENCY, "tools/bazel.rc": "build --jobs=2\n"})
    (tmp_path / ".bazelrc").symlink_to("tools/bazel.rc")
    assert 0 == cli.main([f"--dir={tmp_path}"])
    assert (tmp_path / ".bazelrc").is_symlink()
    assert "dist_testing.bazelrc" in _text(tmp_path, "tools/bazel.rc")
