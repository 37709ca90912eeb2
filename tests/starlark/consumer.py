"""A consumer's workspace in a temporary folder, for the checks of this folder that run a Bazel of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.nested_bazel import ROOT

# The prefix of every flag of the library.
FLAG = "--@dist_testing//dist_testing/config:"

_MODULE = """\
module(name = "consumer")
bazel_dep(name = "dist_testing")
local_path_override(module_name = "dist_testing", path = "{root}")
bazel_dep(name = "rules_python", version = "1.0.0")
python_env = use_extension("@dist_testing//tools/python:extensions.bzl", "python_env")
use_repo(python_env, "local_python")
"""

_LOADING = """\
load("@dist_testing//dist_testing:backends.bzl", "declare_backend")
load("@dist_testing//dist_testing:defs.bzl", "dist_py_test", "dist_test_suites")
"""

_STUB = """\
load("@rules_python//python:py_library.bzl", "py_library")

[py_library(name = name, visibility = ["//visibility:public"]) for name in {names}]
"""
_LIBRARIES = ["torch", "pytest", "psutil", "runfiles"]


def write_workspace(folder: Path, packages: Mapping[str, str], *, module: str = "") -> None:
    """Write the workspace: package -> its BUILD file, after the load. Each package has a source `a.py`."""
    (folder / "MODULE.bazel").write_text(_MODULE.format(root=ROOT) + module, encoding="utf-8")
    (folder / "BUILD.bazel").write_text("", encoding="utf-8")
    for package, calls in packages.items():
        (folder / package).mkdir()
        (folder / package / "a.py").write_text("", encoding="utf-8")
        (folder / package / "BUILD.bazel").write_text(f"{_LOADING}{calls}\n", encoding="utf-8")


def write_stubs(folder: Path) -> None:
    """Give the library empty packages instead of its wheels, and import its flags."""
    (folder / "stub").mkdir()
    (folder / "stub" / "BUILD.bazel").write_text(_STUB.format(names=_LIBRARIES), encoding="utf-8")
    flags = "".join(f"build {FLAG}{name}=//stub:{name}\n" for name in _LIBRARIES)
    # Consumers copy it.
    (folder / "dist_testing.bazelrc").symlink_to(ROOT / "dist_testing.bazelrc")
    flags += "import %workspace%/dist_testing.bazelrc\n"
    (folder / ".bazelrc").write_text(flags, encoding="utf-8")
