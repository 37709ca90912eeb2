"""The checks of a release notice archives that are wrong."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from release_steps import archives, commands

ROOT = Path(__file__).absolute().parents[2]
TRACKED = ("dist_testing/__init__.py", "dist_testing/defs.bzl", "dist_testing/core/README.md", "tests/test_a.py")
METADATA = [f"dist_testing-1.2.dist-info/{name}" for name in archives._METADATA]
SDIST = ("LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "dist_testing/__init__.py", "dist_testing/more.py")


def _wheel(folder: Path, *names: str) -> Path:
    with zipfile.ZipFile(folder / "a.whl", "w") as file:
        for name in (*names, *METADATA):
            file.writestr(name, "")
    return folder / "a.whl"


def _tar(file: Path, *names: str) -> Path:
    with tarfile.open(file, "w:gz") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(f"dist_testing-1.2/{name}"), io.BytesIO())
    return file


def test_a_wheel_has_the_package_and_nothing_else(tmp_path: Path) -> None:
    """If this fails, users install tests and tools, or a module is missing there."""
    assert archives.wheel_problems(_wheel(tmp_path, TRACKED[0]), TRACKED, "1.2") == []
    assert archives.wheel_problems(_wheel(tmp_path), TRACKED, "1.2") == ["a.whl lacks dist_testing/__init__.py"]
    for more in ("tests/test_a.py", "tools/init/init.py", "dist_testing/defs.bzl"):
        (told,) = archives.wheel_problems(_wheel(tmp_path, TRACKED[0], more), TRACKED, "1.2")
        assert told == f"a.whl has, and should not: {more}"


def test_the_sources_for_pip_are_complete(tmp_path: Path) -> None:
    """If this fails, a build from the sources fails for others, or has tests that run nothing."""
    file = tmp_path / "a.tar.gz"
    assert archives.sdist_problems(_tar(file, *SDIST)) == []
    assert archives.sdist_problems(_tar(file, *SDIST[1:])) == ["a.tar.gz lacks LICENSE"]
    (told,) = archives.sdist_problems(_tar(file, *SDIST, "tests/test_a.py"))
    assert told == "a.tar.gz has, and should not: tests/test_a.py"


def test_the_registry_finds_the_archive(tmp_path: Path) -> None:
    """If this fails, Bazel's registry downloads a file that does not exist, or finds no module in it."""
    template = (ROOT / ".bcr" / "source.template.json").read_text(encoding="utf-8")
    bazel = _tar(tmp_path / "dist_testing-v1.2.tar.gz", "MODULE.bazel")
    built = archives.Archives("1.2", tmp_path, tmp_path, bazel)
    assert archives.registry_problems(built, template) == []
    other = archives.Archives("1.3", tmp_path, tmp_path, bazel)
    prefix, name = archives.registry_problems(other, template)
    assert "'dist_testing-1.3'; the archive has 'dist_testing-1.2'" in prefix
    assert "'dist_testing-v1.3.tar.gz'; the archive has 'dist_testing-v1.2.tar.gz'" in name


def test_what_the_owner_fills_in_is_told(tmp_path: Path) -> None:
    """If this fails, a release is published with the address of an owner that does not exist."""
    (tmp_path / "a.toml").write_text('name = "a"\nurl = "https://host/OWNER/a"\n', encoding="utf-8")
    (tmp_path / "b.md").write_text("The OWNERS of files.\n", encoding="utf-8")
    assert archives.placeholders(tmp_path, ["a.toml", "b.md"]) == ['a.toml:2: url = "https://host/OWNER/a"']
    with pytest.raises(commands.ReleaseError, match=r"c\.md cannot be read: No such file"):
        archives.placeholders(tmp_path, ["c.md"])


def test_commands_see_nothing_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the fresh environment imports the checkout, and the wheel is not what was tested."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    body = "import os; print(sorted(set(os.environ) & {'PYTHONPATH', 'RANK', 'PATH'}))"
    assert commands.output_of([sys.executable, "-c", body], tmp_path) == "['PATH']\n"
    with pytest.raises(commands.ReleaseError, match=r"ended with 3:\n  first\n.*\n.*"):
        commands.output_of([sys.executable, "-c", "print('first'); raise SystemExit(3)"], tmp_path)
