"""Wheels in folders of their own as one site-packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[2] / "wheels"
_NAMESPACE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


def _merge(tmp_path: Path, files: dict[str, str], *imports: str) -> subprocess.CompletedProcess[str]:
    """Merge files by their runfiles paths; by default the folder `site-packages` of each repository is on the path."""
    found = imports or sorted({f"{name.partition('/')[0]}/site-packages" for name in files})
    lines = [f"import\t{path}" for path in found]
    for name, text in files.items():
        path = tmp_path / "repositories" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        lines.append(f"file\t{name}\t{path}")
    listed = tmp_path / "list"
    listed.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-I", str(WHEELS / "merge.py"), "//a:merged", str(tmp_path / "out"), str(listed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _refused(tmp_path: Path, files: dict[str, str], *imports: str) -> str:
    done = _merge(tmp_path, files, *imports)
    assert done.returncode == 1, done
    assert len(done.stderr.splitlines()) == 3, done.stderr
    return done.stderr


def test_files_of_all_wheels_are_in_one_folder(tmp_path: Path) -> None:
    """If this fails, torch does not find the libraries of NVIDIA's packages, which it expects beside its own folder."""
    files = {
        "torch/site-packages/torch/lib/libtorch_cuda.so": "needs ../../nvidia",
        "torch/site-packages/torch/__init__.py": "",
        "cublas/site-packages/nvidia/cublas/lib/libcublas.so.12": "cublas",
        "cudnn/site-packages/nvidia/cudnn/lib/libcudnn.so.9": "cudnn",
        "cudnn/bin/tool": "a program",
    }
    done = _merge(tmp_path, files)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()} == {
        name.partition("/site-packages/")[2] for name in files if "site-packages" in name
    }
    # As a loader resolves a library's RPATH: from the path by which it was opened, through `..`.
    assert (out / "torch/lib/../../nvidia/cudnn/lib/libcudnn.so.9").read_text() == "cudnn"


@pytest.mark.parametrize("other", ["", "# only words\n", "VERSION = 3\n"])
@pytest.mark.parametrize("swap", [False, True])
def test_a_namespace_package_takes_the_file_with_code(tmp_path: Path, other: str, swap: bool) -> None:
    """If this fails, packages that share a folder, as NVIDIA's share `nvidia`, cannot be merged, or lose their code."""
    texts = [_NAMESPACE, other]
    first, second = reversed(texts) if swap else texts
    files = {"a/site-packages/nvidia/__init__.py": first, "b/site-packages/nvidia/__init__.py": second}
    done = _merge(tmp_path, files)
    assert done.returncode == 0, done.stderr
    merged = (tmp_path / "out/nvidia/__init__.py").read_text()
    assert merged == other if "VERSION" in other else merged in texts


def test_two_versions_are_refused(tmp_path: Path) -> None:
    """If this fails, a test gets one of two versions by chance, or parts of both."""
    files = {"a/site-packages/blue/core.py": "VERSION = 1\n", "b/site-packages/blue/core.py": "VERSION = 2\n"}
    text = _refused(tmp_path, files)
    assert "//a:merged: blue/core.py is in two wheels, and differs: " in text


def test_equal_files_and_files_that_nothing_imports_may_be_twice(tmp_path: Path) -> None:
    """If this fails, wheels with a licence at the top cannot be merged."""
    files = {f"{name}/site-packages/LICENSE": name for name in "ab"}
    files |= {f"{name}/site-packages/tests/__init__.py": "X = 1\n" for name in "ab"}
    done = _merge(tmp_path, files)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/LICENSE").read_text() == "a"


def test_a_library_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    """If this fails, the modules of a library are missing in the test, and nothing says why."""
    text = _refused(tmp_path, {"_main/pkg/own.py": "", "a/site-packages/a.py": ""}, "a/site-packages")
    assert "//a:merged: _main/pkg/own.py is in no folder that its target adds to Python's path." in text


def test_packages_without_files_are_refused(tmp_path: Path) -> None:
    """If this fails, a merged library of nothing builds, and the test that uses it says that torch is missing."""
    assert "have no files" in _refused(tmp_path, {"a/bin/tool": ""})
