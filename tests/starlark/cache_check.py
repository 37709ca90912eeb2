"""Check that tests with wheels are cache hits on another machine: `python3 -m tests.starlark.cache_check [--torch]`.

Two output bases with one disk cache stand for two machines with a shared cache: each installs the wheels by itself. The
lock is a small one, and the test a `py_test`; with `--torch` the `dist_py_test` of docs/consumers.md runs, too, which
takes minutes.
"""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from e2e.pages import CONSUMERS, make_mine
from tests.starlark.consumer import write_workspace
from tests.support.nested_bazel import ROOT, nested_bazel, scratch_folder

_MODULE = """\
python = use_extension("@rules_python//python/extensions:python.bzl", "python")
python.toolchain(ignore_root_user_error = True, is_default = True, python_version = "3.11")
use_repo(python, "python_3_11_host")
wheels = use_extension("@dist_testing//wheels:extensions.bzl", "wheels")
wheels.lock(hub = "pypi", name = "cpu", file = "//:requirements.txt", interpreter = "@python_3_11_host//:python")
wheels.lock(hub = "pypi", name = "cuda", file = "//:requirements_cuda.txt", interpreter = "@python_3_11_host//:python")
use_repo(wheels, "pypi")
"""
_BUILD = """\
load("@rules_python//python:py_test.bzl", "py_test")
py_test(name = "test", srcs = ["test.py"], deps = ["@pypi//iniconfig"])
"""
_SMALL, _TORCH = "//small:test", "//mytests:ring_gloo"
_FORM = "--@dist_testing//wheels:form="


def _small_workspace(folder: Path) -> Path:
    write_workspace(folder, {"small": _BUILD}, module=_MODULE)
    (folder / "small" / "test.py").write_text("import iniconfig\n", encoding="utf-8")
    for name in ("requirements.txt", "requirements_cuda.txt"):
        shutil.copy(ROOT / "e2e" / "wheels" / name, folder)
    return folder


def _torch_workspace(folder: Path) -> Path:
    workspace = make_mine(CONSUMERS, folder)
    shutil.copy(ROOT / "requirements.txt", workspace)
    return workspace


def check(workspace: Path, test: str, scratch: Path, others: tuple[str, ...]) -> list[str]:
    """Run a test in two output bases, and return the complaints; with the options `others` there must be no hit."""
    found = []
    # Of different lengths.
    for base in ("one", "another_one"):
        with nested_bazel(workspace, scratch / base, common=(f"--disk_cache={scratch / 'cache'}",)) as bazel:
            runs = [((f"{_FORM}{form}",), base != "one") for form in ("directory", "archive")]
            for options, is_hit in [*runs, *([(others, False)] if others and base != "one" else [])]:
                done = bazel.run("test", "--test_output=errors", *options, test)
                cached = r"\(cached\) " if is_hit else ""
                if re.search(rf"^{test} +{cached}PASSED", done.output, re.MULTILINE) is None:
                    sys.stderr.write(done.output)
                    found.append(f"{base}: {test} {' '.join(options)}: {'no hit' if is_hit else 'not run and passed'}")
    return found


def main() -> int:
    """Check, and report on stderr."""
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder("cache_check"))
        for name in ("small", "torch"):
            (scratch / name).mkdir()
        # Another version is another input.
        found = check(_small_workspace(scratch / "small"), _SMALL, scratch, ("--@dist_testing//wheels:lock=cuda",))
        if "--torch" in sys.argv[1:]:
            found += check(_torch_workspace(scratch / "torch"), _TORCH, scratch, ())
    for complaint in found:
        sys.stderr.write(f"cache_check.py: {complaint}\n")
    sys.stderr.write(f"cache_check.py: {len(found)} complaints\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
