#!/usr/bin/env python3
"""Check what a user reads when a BUILD file or the machine is wrong: `errors_check.py [bazel]`.

Such errors end Bazel before any test could run, so this is a program that runs Bazel: `bazel`, or
`./bazelw` when none is named. It makes a consumer's workspace in a temporary folder, with one package
for each wrong call, and reads the error texts. Exit status 0 when each says what it should.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODULE = """\
module(name = "consumer")
bazel_dep(name = "dist_testing")
local_path_override(module_name = "dist_testing", path = "{root}")
python_env = use_extension("@dist_testing//tools/python:extensions.bzl", "python_env")
python_env.wheels(
    name = "wheels",
    default = "cpu",
    locks = {{
        "//:bad.txt": "bad",
        "//:cpu.txt": "cpu",
        "//:unknown.txt": "unknown",
        "//:wrong_hash.txt": "wrong_hash",
    }},
)
use_repo(python_env, "local_python", "wheels")
"""

LOADING = 'load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")\n'

NO_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Loading:
    """A wrong call of dist_py_test.

    Attributes:
        name: Of the package that holds it.
        arguments: Of the call, beside `name = "case"`.
        expected: Parts of the text, one of which is the target.
    """

    name: str
    arguments: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A Bazel command that fails.

    Attributes:
        name: Shown when it does not fail as it should.
        arguments: Of Bazel.
        expected: Parts of its output.
    """

    name: str
    arguments: tuple[str, ...]
    expected: tuple[str, ...]


RIGHT = 'srcs = ["a.py"], backends = ["gloo"], world_size = 2'

LOADING_CASES = (
    Loading(
        "unknown_backend",
        'srcs = ["a.py"], backends = ["ncl"], world_size = 2',
        ('"ncl" is not a backend. Did you mean "nccl"?',),
    ),
    Loading("no_backend", 'srcs = ["a.py"], backends = [], world_size = 2', ("backends = []",)),
    Loading("world_of_0", 'srcs = ["a.py"], backends = ["gloo"], world_size = 0', ("world_size = 0",)),
    Loading("world_of_minus_1", 'srcs = ["a.py"], backends = ["gloo"], world_size = -1', ("world_size = -1",)),
    Loading("world_of_two", 'srcs = ["a.py"], backends = ["gloo"], world_size = "two"', ('world_size = "two"',)),
    Loading(
        "gpus_for_cpu",
        RIGHT + ", gpus_per_rank = 1",
        ('gpus_per_rank = 1 with backend "gloo"', "kept idle"),
    ),
    Loading("no_srcs", 'srcs = [], backends = ["gloo"], world_size = 2', ("srcs = []",)),
    Loading("unknown_isolation", RIGHT + ', isolation = "frok"', ('Did you mean "fork"?',)),
    Loading("own_tag", RIGHT + ', tags = ["gpus:4"]', ('"gpus:4" is set by dist_py_test',)),
    Loading("own_variable", RIGHT + ', env = {"RANK": "0"}', ('env: RANK = "0"',)),
    Loading("own_main", RIGHT + ', main = "a.py"', ('main = "a.py"',)),
    Loading("two_problems", RIGHT + ', isolation = "x", size = "huge"', ('isolation = "x"', 'and size = "huge"')),
    Loading(
        "too_many_gpus",
        'srcs = ["a.py"], backends = ["nccl"], world_size = 32',
        ("world_size 32 x gpus_per_rank 1 = 32 GPUs",),
    ),
)

COMMAND_CASES = (
    # py_test itself knows what it knows: nothing that is passed on is swallowed.
    Command("unknown argument", ("query", "//unknown_argument:all"), ("no such attribute 'wolrd_size'",)),
    Command(
        "GPU target without GPUs",
        ("build", "--nobuild", "--@dist_testing//dist_testing/config:gpus=1", "//right:case_nccl"),
        ("//right:case_nccl is incompatible", "needs_2_nvidia_gpus_but_this_machine_has_fewer"),
    ),
    Command(
        "torch not named",
        ("build", "--nobuild", "//right:case_gloo"),
        (
            "@dist_testing//dist_testing/config:torch is not set, so dist_testing does not know your torch.",
            "build --@dist_testing//dist_testing/config:torch=@pypi//torch",
        ),
    ),
    Command(
        "no such interpreter",
        ("query", "--repo_env=DIST_TESTING_PYTHON=/nowhere/python3", "@local_python//:all"),
        ("DIST_TESTING_PYTHON=/nowhere/python3: not a CPython 3.10 or newer", "Correct DIST_TESTING_PYTHON"),
    ),
    Command(
        "no interpreter on PATH",
        ("query", "--repo_env=PATH=/nowhere", "@local_python//:all"),
        ("No CPython 3.10 or newer on PATH (python3 is not there", "Install python3"),
    ),
    Command(
        "interpreter too old",
        ("query", "--repo_env=DIST_TESTING_PYTHON={workspace}/python_too_old", "@local_python//:all"),
        ("python_too_old: it is Python 3.9.2",),
    ),
    Command(
        "interpreter without pip",
        ("query", "--repo_env=DIST_TESTING_PYTHON={workspace}/python_without_pip", "@wheels//:all"),
        ("this interpreter has no pip", "apt-get install python3-pip"),
    ),
    Command(
        "unknown lock file",
        ("query", "--repo_env=DIST_TESTING_LOCK=rocm", "@wheels//:all"),
        ("DIST_TESTING_LOCK=rocm: no lock file has that name", "bad, cpu, unknown, wrong_hash"),
    ),
    Command(
        "wrong hash",
        ("query", "--repo_env=DIST_TESTING_LOCK=wrong_hash", "@wheels//:all"),
        ("The wheels of wrong_hash.txt could not be installed", "A wheel is not the file that was locked"),
    ),
    Command(
        "no such version",
        ("query", "--repo_env=DIST_TESTING_LOCK=unknown", "@wheels//:all"),
        ("No index that pip knows has that version", "Choose another interpreter"),
    ),
    Command(
        "package index out of reach",
        (
            "query",
            "--repo_env=DIST_TESTING_LOCK=unknown",
            # A port that nothing listens on. pip says so only when it tries again.
            "--repo_env=PIP_INDEX_URL=http://127.0.0.1:9/simple",
            "--repo_env=PIP_CONFIG_FILE=/dev/null",
            "--repo_env=PIP_RETRIES=1",
            "@wheels//:all",
        ),
        ("The package index could not be reached.",),
    ),
    Command(
        "lock file that is none",
        ("query", "--repo_env=DIST_TESTING_LOCK=bad", "@wheels//:all"),
        ("could not be installed", "pip's own words are above"),
    ),
)

# Stand for interpreters that this machine does not have.
TOO_OLD = """\
#!/bin/sh
echo '{"executable": "/old/python3", "found": "/old/python3", "implementation": "cpython", "version": [3, 9, 2]}'
"""
WITHOUT_PIP = """\
#!/bin/sh
if [ "$2" = pip ]; then exit 1; fi
echo '{"executable": "'"$0"'", "found": "'"$0"'", "implementation": "cpython", "version": [3, 12, 0]}'
"""


def write_workspace(folder: Path) -> None:
    """Write the consumer's workspace."""
    (folder / "MODULE.bazel").write_text(MODULE.format(root=ROOT), encoding="utf-8")
    (folder / "BUILD.bazel").write_text("", encoding="utf-8")
    hashed = "iniconfig=={version} --hash=sha256:" + NO_HASH + "\n"
    (folder / "cpu.txt").write_text(hashed.format(version="2.0.0"), encoding="utf-8")
    (folder / "wrong_hash.txt").write_text(hashed.format(version="2.0.0"), encoding="utf-8")
    (folder / "unknown.txt").write_text(hashed.format(version="999.0"), encoding="utf-8")
    (folder / "bad.txt").write_text("this is not a requirement\n", encoding="utf-8")
    for name, script in (("python_too_old", TOO_OLD), ("python_without_pip", WITHOUT_PIP)):
        (folder / name).write_text(script, encoding="utf-8")
        (folder / name).chmod(0o755)
    packages = {case.name: case.arguments for case in LOADING_CASES}
    packages["right"] = 'srcs = ["a.py"], backends = ["gloo", "nccl"], world_size = 2'
    packages["unknown_argument"] = RIGHT + ", wolrd_size = 4"
    for package, arguments in packages.items():
        (folder / package).mkdir()
        (folder / package / "a.py").write_text("", encoding="utf-8")
        call = f'{LOADING}dist_py_test(name = "case", {arguments})\n'
        (folder / package / "BUILD.bazel").write_text(call, encoding="utf-8")


def run(bazel: str, folder: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run Bazel in the consumer's workspace; return its exit status and everything it printed."""
    output_root = f"--output_user_root={folder}.output"
    given = [argument.format(workspace=folder) for argument in arguments]
    command = [bazel, output_root, given[0], "--lockfile_mode=off", "--color=no", "--curses=no", *given[1:]]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def complaints(name: str, status: int, output: str, expected: tuple[str, ...]) -> list[str]:
    """Say what is wrong with one error text."""
    if status == 0:
        return [f"{name}: Bazel succeeded"]
    return [f"{name}: the text lacks {part!r}" for part in expected if part not in output]


def check(bazel: str, folder: Path) -> list[str]:
    """Run every case; return what is wrong."""
    write_workspace(folder)
    packages = [f"//{case.name}:all" for case in LOADING_CASES]
    status, loading = run(bazel, folder, ("query", "--keep_going", f"set({' '.join(packages)})"))
    found: list[str] = []
    for case in LOADING_CASES:
        target = f"dist_py_test //{case.name}:case: "
        found += complaints(case.name, status, loading, (target, *case.expected))
    shown = loading if found else ""
    for command in COMMAND_CASES:
        status, output = run(bazel, folder, command.arguments)
        wrong = complaints(command.name, status, output, command.expected)
        found += wrong
        shown += output if wrong else ""
    if shown:
        sys.stderr.write(shown)
    return found


def main() -> int:
    """Check, and report on stderr."""
    bazel = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "bazelw")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache.mkdir(parents=True, exist_ok=True)
    # Not below /tmp: Bazel's sandbox has its own.
    with tempfile.TemporaryDirectory(dir=cache, prefix="errors_check.") as scratch:
        folder = Path(scratch) / "consumer"
        folder.mkdir()
        try:
            found = check(bazel, folder)
        finally:
            run(bazel, folder, ("shutdown",))
            # Bazel takes away the permission to write from what it fetched.
            subprocess.run(["chmod", "-R", "u+w", scratch], check=True)
    for complaint in found:
        sys.stderr.write(f"errors_check.py: {complaint}\n")
    count = len(LOADING_CASES) + len(COMMAND_CASES)
    sys.stderr.write(f"errors_check.py: {count} cases, {len(found)} complaints\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
