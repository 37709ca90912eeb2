"""Check the error texts for wrong BUILD files and machines: `python3 -m tests.starlark.errors_check [bazel]`.

Such errors end Bazel before a test could run, so this is a program that runs Bazel: `bazel`, or
`./bazelw` when none is named. It makes a consumer's workspace in a temporary folder, with one package
for each wrong call, and reads the error texts. Exit status 0 when each text has the expected parts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.starlark.consumer import write_workspace
from tests.support.nested_bazel import Done, NestedBazel, nested_bazel, scratch_folder

MODULE = """\
wheels = use_extension("@dist_testing//wheels:extensions.bzl", "wheels")
wheels.lock(hub = "right", name = "cpu", file = "//:cpu.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "right", name = "cuda", file = "//:cuda.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "bad", file = "//:bad.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "without_hash", file = "//:without_hash.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "unknown", file = "//:unknown.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "wrong_hash", file = "//:wrong_hash.txt", interpreter = "@local_python//:python3")
wheels.lock(hub = "vanished", file = "//:cpu.txt", interpreter = "//:python_that_vanished")
wheels.lock(hub = "old", file = "//:cpu.txt", interpreter = "//:python_too_old")
use_repo(wheels, "bad", "old", "right", "unknown", "vanished", "without_hash", "wrong_hash")
"""

NO_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Loading:
    """A wrong BUILD file.

    Attributes:
        name: Name of the package.
        arguments: Arguments of a call of dist_py_test, beside `name = "case"`.
        expected: Parts of the error text.
        before: Text above the call.
        call: Replaces the call with `arguments`.
        subject: Start of the error text; in it, `//{name}` is the package.
    """

    name: str
    arguments: str
    expected: tuple[str, ...]
    before: str = ""
    call: str = ""
    subject: str = "dist_py_test //{name}:case: "


@dataclass(frozen=True, slots=True)
class Command:
    """A Bazel command that fails.

    Attributes:
        name: Shown when the command does not fail as expected.
        arguments: Arguments of Bazel.
        expected: Parts of its output.
    """

    name: str
    arguments: tuple[str, ...]
    expected: tuple[str, ...]


RIGHT = 'srcs = ["a.py"], backends = ["gloo"], world_size = 2'

WRONG_BACKEND = (
    'name = "Wrong", torch_backend = "cpu:gloo,nccl", device = "cudda", features = ["telepathy"], vendor = "nvida", '
    'timeout_s = 0, shares_gpus = True, env = {"A": 1}, deps = [":relative"]'
)
RING = 'name = "ring", torch_backend = "ring", device = "cpu", register_module = "ring"'

LOADING_CASES = (
    Loading(
        "unknown_backend",
        'srcs = ["a.py"], backends = ["ncl"], world_size = 2',
        (
            '"ncl" is not a backend. Did you mean "nccl"?',
            "dist_testing declares these: cuda_gloo, fake, gloo, ",
            "Use one of them, or the value of declare_backend(...) itself (docs/backends.md).\n",
        ),
    ),
    Loading(
        "backend_of_another_type",
        "",
        ("in_process = 1", "needs bool", 'and timeout_s = "60"', "Its type is string, and a backend needs int."),
        call=f'declare_backend({RING}, timeout_s = "60", in_process = 1)',
        subject='declare_backend(name = "ring"): ',
    ),
    Loading(
        "backend_with_an_unknown_argument",
        "",
        ("declare_backend() got unexpected keyword argument", "vendr"),
        call=f'declare_backend({RING}, vendr = "amd")',
        subject="",
    ),
    Loading(
        "backend_with_a_taken_name",
        "",
        ('"gloo" is declared twice.', "dist_testing declares a backend of that name."),
        before='GLOO = declare_backend(name = "gloo", torch_backend = "other", device = "cpu")',
        call='dist_py_test(name = "case", srcs = ["a.py"], backends = [GLOO], world_size = 2)',
    ),
    Loading(
        "backend_declared_twice",
        "",
        ('backends = ["ring", "ring"]: "ring" is declared twice.', "Give one of them another name."),
        before=f"A = declare_backend({RING})\nB = declare_backend({RING}, timeout_s = 5)",
        call='dist_py_test(name = "case", srcs = ["a.py"], backends = [A, B], world_size = 2)',
    ),
    Loading(
        "backend_declared_wrongly",
        "",
        (
            'name = "Wrong"',
            'and feature "telepathy" is not known.',
            'and torch_backend = "cpu:gloo,nccl"',
            'and device = "cudda" without register_module. Did you mean "cuda"?',
            'and vendor = "nvida" with gpus_per_rank = 0',
            "and shares_gpus = True with gpus_per_rank = 0",
            "and timeout_s = 0",
            'and env: "A" = 1',
            'and deps: ":relative"',
        ),
        call=f"declare_backend({WRONG_BACKEND})",
        subject='declare_backend(name = "Wrong"): ',
    ),
    Loading("no_backend", 'srcs = ["a.py"], backends = [], world_size = 2', ("backends = []",)),
    Loading("world_of_0", 'srcs = ["a.py"], backends = ["gloo"], world_size = 0', ("world_size = 0",)),
    Loading(
        "unknown_lock", RIGHT + ', lock = "cudda"', ('lock = "cudda". Did you mean "cuda"?', "Use one of: cpu, cuda, ")
    ),
    Loading(
        "unknown_lock_of_a_library",
        "",
        ('lock = "rocm"', "Use one of: cpu, cuda, "),
        before='load("@dist_testing//wheels:defs.bzl", "with_lock")',
        call='with_lock(name = "case", library = ":a", lock = "rocm")',
        subject="with_lock //{name}:case: ",
    ),
    Loading("no_list", RIGHT + ', deps = "//x"', ('deps = "//x"', "a list, or a select() of lists")),
    Loading("no_srcs", 'srcs = [], backends = ["gloo"], world_size = 2', ("srcs = []",)),
    Loading("own_tag", RIGHT + ', tags = ["gpus:4"]', ('"gpus:4" is set by dist_py_test',)),
    Loading("own_variable", RIGHT + ', env = {"RANK": "0"}', ('env: RANK = "0"',)),
    Loading("own_main", RIGHT + ', main = "a.py"', ('main = "a.py"',)),
    Loading(
        "two_problems", RIGHT + ', isolation = "x", gpus_per_rank = 1', ("gpus_per_rank = 1", 'and isolation = "x"')
    ),
    Loading(
        "too_many_gpus",
        'srcs = ["a.py"], backends = ["nccl"], world_size = 32',
        ("world_size 32 x gpus_per_rank 1 = 32 GPUs",),
    ),
    Loading("uneven_nodes", RIGHT + ", nodes = 3", ("nodes = 3 with world_size = 2", "must divide")),
    Loading(
        "shards_of_another",
        RIGHT + ', shard_count = {"nccl": 2}',
        ('shard_count = {"nccl": 2}: the key "nccl" is not in backends',),
    ),
    Loading(
        "property_of_every_action",
        RIGHT + ', exec_properties = {"Pool": "gpu"}',
        ('exec_properties: "Pool" = "gpu"', 'Write "test.Pool".'),
    ),
    # Of what follows, Bazel's own text says everything.
    Loading(
        "taken_by_a_file_group",
        RIGHT,
        ("rule 'case_gloo' in package 'taken_by_a_file_group' conflicts with existing filegroup rule",),
        before='filegroup(name = "case_gloo")',
        subject="",
    ),
    Loading("size_is_unknown", RIGHT + ', size = "huge"', ("size 'huge' is not a valid size.",), subject=""),
    Loading("timeout_is_seconds", RIGHT + ', timeout = "30"', ("timeout '30' is not a valid timeout.",), subject=""),
    Loading("variable_is_a_number", RIGHT + ', env = {"A": 1}', ("but got 1 (int)",), subject=""),
    Loading("inherits_a_number", RIGHT + ", env_inherit = [3]", ("but got 3 (int)",), subject=""),
    Loading(
        "taken_later",
        "",
        ("'case.spec' in package 'taken_later' conflicts with existing",),
        before=f'dist_py_test(name = "case", {RIGHT})\ndist_py_test(name = "other", {RIGHT})',
        call='filegroup(name = "case.spec")',
        subject="",
    ),
    Loading(
        "name_is_a_number",
        "",
        ("name = 3",),
        call=f"dist_py_test(name = 3, {RIGHT})",
        subject="dist_py_test in //{name}: ",
    ),
    Loading(
        "name_is_no_name",
        "",
        ("invalid target name 'a:b'",),
        call=f'dist_py_test(name = "a:b", {RIGHT})',
        subject="",
    ),
    Loading(
        "name_is_a_wildcard",
        "",
        ('name = "all"', "every target of the package"),
        call=f'dist_py_test(name = "all", {RIGHT})',
        subject="dist_py_test //{name}:all: ",
    ),
    Loading(
        "source_is_no_label",
        'srcs = ["../a.py"], backends = ["gloo"], world_size = 2',
        ("invalid target name '../a.py': target names may not contain up-level references",),
        subject="",
    ),
    Loading(
        "too_many_sources",
        'srcs = ["test_with_a_long_name_%d.py" % i for i in range(3000)], backends = ["gloo"], world_size = 2',
        ("srcs has 3000 files; DIST_TESTING_SPEC", "Split the target"),
    ),
    Loading("timings_is_a_number", RIGHT + ", timings = 5", ("timings = 5", "the one file")),
    Loading("inherits_own_variable", RIGHT + ', env_inherit = ["RANK"]', ('env_inherit: "RANK"',)),
    Loading("inherits_a_text", RIGHT + ', env_inherit = "A"', ('env_inherit = "A"', "a list, or a select() of lists")),
    Loading("nameless_property", RIGHT + ', exec_properties = {"test.": "x"}', ('exec_properties: "test." = "x"',)),
    Loading(
        "suites_of_nothing",
        "",
        ("No dist_py_test that is not manual stands above this call.", "Put it at the end"),
        call="dist_test_suites()",
        subject="dist_test_suites //{name}:all: ",
    ),
    Loading(
        "suites_of_manual_tests",
        "",
        ("No dist_py_test that is not manual stands above this call.",),
        before=f'dist_py_test(name = "case", {RIGHT}, tags = ["manual"])',
        call="dist_test_suites()",
        subject="dist_test_suites //{name}:all: ",
    ),
    Loading(
        "suites_twice",
        "",
        ("'all_gloo' in package 'suites_twice' conflicts with existing test_suite rule",),
        before=f'dist_py_test(name = "case", {RIGHT})\ndist_test_suites()',
        call="dist_test_suites()",
        subject="",
    ),
    Loading(
        "suites_without_a_name",
        "",
        ('name = ""',),
        before=f'dist_py_test(name = "case", {RIGHT})',
        call='dist_test_suites(name = "")',
        subject="dist_test_suites in //{name}: ",
    ),
    Loading(
        "suite_of_another_backend",
        "",
        ('no test above uses "nccl"', "The tests above use: gloo."),
        before=f'dist_py_test(name = "case", {RIGHT})',
        call='dist_test_suites(backends = ["nccl"])',
        subject="dist_test_suites //{name}:all: ",
    ),
)

COMMAND_CASES = (
    # py_test reports its own errors: the macro passes on everything and hides nothing.
    Command("unknown argument", ("query", "//unknown_argument:all"), ("no such attribute 'wolrd_size'",)),
    Command(
        "GPU target without GPUs",
        ("build", "--nobuild", "--@dist_testing//dist_testing/config:gpus=1", "//right:case_nccl"),
        ("//right:case_nccl is incompatible", "needs_2_nvidia_gpus_but_this_machine_has_fewer"),
    ),
    Command(
        "pools that are not declared",
        ("build", "--nobuild", "--@dist_testing//dist_testing/config:gpus=pools", "//right:case_nccl"),
        ("dist_testing/config:gpus=pools: no pool is declared.", "Declare them (docs/remote.md)"),
    ),
    Command(
        "root of the machine that is no folder",
        ("build", "--nobuild", "--repo_env=DIST_TESTING_HOST_ROOT=here", "//right:case_gloo"),
        ("DIST_TESTING_HOST_ROOT=here: not an absolute path of a folder.", "drop it for the machine's own facts"),
    ),
    Command(
        "torch not named",
        ("build", "--nobuild", "--keep_going", "//right:case_gloo"),
        (
            "@dist_testing//dist_testing/config:torch is not set, so dist_testing does not know your torch.",
            'Add to MODULE.bazel, with your own hub\'s name: dist_testing.packages(hub = "@pypi")',
            "build --@dist_testing//dist_testing/config:torch=@pypi//torch",
        ),
    ),
    Command(
        "no such interpreter",
        ("query", "--repo_env=DIST_TESTING_PYTHON=/nowhere/python3", "@local_python//:all"),
        ("DIST_TESTING_PYTHON=/nowhere/python3: not a CPython 3.11 or newer", "Correct DIST_TESTING_PYTHON"),
    ),
    Command(
        "no interpreter on PATH",
        ("query", "--repo_env=PATH=/nowhere", "@local_python//:all"),
        ("No CPython 3.11 or newer on PATH (python3 is not there", "Install python3"),
    ),
    Command(
        "interpreter too old",
        ("query", "--repo_env=DIST_TESTING_PYTHON={workspace}/python_too_old", "@local_python//:all"),
        ("python_too_old: it is Python 3.9.2",),
    ),
    Command(
        "wheels for an interpreter that vanished",
        ("build", "--nobuild", "@vanished//iniconfig"),
        (
            "//:python_that_vanished: this interpreter does not run (",
            "it was removed, or it is for another machine.",
            "or name another one: wheels.lock(interpreter = ",
        ),
    ),
    Command(
        "wheels for an interpreter that is too old",
        ("build", "--nobuild", "@old//iniconfig"),
        ("//:python_too_old: Python 3.9.2 is too old.", "3.11 is the oldest"),
    ),
    Command(
        "unknown lock",
        ("build", "--nobuild", "--@dist_testing//wheels:lock=rocm", "@right//iniconfig"),
        ("//wheels:lock: invalid value 'rocm'", '["", "cpu", "cuda", "default"]'),
    ),
    Command(
        "package of another lock",
        ("build", "--nobuild", "@right//only_cuda"),
        (
            'The lock "cpu" of the hub "right" has no package "only_cuda".',
            'Only "cuda" has it',
            "or choose another lock",
        ),
    ),
    Command(
        "wrong hash",
        ("build", "--nobuild", "@wrong_hash//iniconfig"),
        ("The wheels of //:wrong_hash.txt could not be installed", "A wheel is not the file that was locked"),
    ),
    Command(
        "no such version",
        ("build", "--nobuild", "@unknown//iniconfig"),
        ("No index that pip knows has that version", "Choose another interpreter"),
    ),
    Command(
        "package index out of reach",
        (
            "build",
            "--nobuild",
            # Nothing listens on this port. pip reports that only when it tries again.
            "--repo_env=PIP_INDEX_URL=http://127.0.0.1:9/simple",
            "--repo_env=PIP_CONFIG_FILE=/dev/null",
            "--repo_env=PIP_RETRIES=1",
            "@unknown//iniconfig",
        ),
        ("The package index could not be reached.",),
    ),
    Command(
        "lock file that is none",
        ("query", "@bad//:all"),
        ('//:bad.txt: "this is not a requirement" is not a pinned requirement.', "Lock it again: uv pip compile"),
    ),
    Command(
        "lock file without hashes",
        ("query", "@without_hash//:all"),
        ("//:without_hash.txt: There is no hash for iniconfig.", "--generate-hashes"),
    ),
)

# Stand-ins for interpreters that this machine does not have.
TOO_OLD = """\
#!/bin/sh
echo '{"executable": "/bin/sh", "found": "/bin/sh", "implementation": "cpython", "version": [3, 9, 2]}'
"""
VANISHED = """\
#!/bin/sh
exec /nowhere/python3 "$@"
"""


def write_files(folder: Path) -> None:
    """Write the consumer's workspace."""
    packages = {
        case.name: f"{case.before}\n" + (case.call or f'dist_py_test(name = "case", {case.arguments})')
        for case in LOADING_CASES
    }
    right = 'srcs = ["a.py"], backends = ["gloo", "nccl"], world_size = 2, tags = None, deps = None, args = None'
    packages["right"] = f'dist_py_test(name = "case", {right})'
    packages["unknown_argument"] = f'dist_py_test(name = "case", {RIGHT}, wolrd_size = 4)'
    write_workspace(folder, packages, module=MODULE)
    hashed = "iniconfig=={version} --hash=sha256:" + NO_HASH + "\n"
    (folder / "cpu.txt").write_text(hashed.format(version="2.0.0"), encoding="utf-8")
    (folder / "wrong_hash.txt").write_text(hashed.format(version="2.0.0"), encoding="utf-8")
    (folder / "unknown.txt").write_text(hashed.format(version="999.0"), encoding="utf-8")
    (folder / "cuda.txt").write_text(f"only-cuda==1 --hash=sha256:{NO_HASH}\n", encoding="utf-8")
    (folder / "without_hash.txt").write_text("iniconfig==2.0.0\n", encoding="utf-8")
    (folder / "bad.txt").write_text("this is not a requirement\n", encoding="utf-8")
    for name, script in (("python_too_old", TOO_OLD), ("python_that_vanished", VANISHED)):
        (folder / name).write_text(script, encoding="utf-8")
        (folder / name).chmod(0o755)


def complaints(name: str, done: Done, expected: tuple[str, ...]) -> list[str]:
    """Return the complaints about one error text."""
    if done.status == 0:
        return [f"{name}: Bazel succeeded"]
    return [f"{name}: the text lacks {part!r}" for part in expected if part not in done.output]


def check(bazel: NestedBazel) -> list[str]:
    """Run every case; return the complaints."""
    packages = [f"//{case.name}:all" for case in LOADING_CASES]
    loading = bazel.run("query", "--keep_going", f"set({' '.join(packages)})")
    found: list[str] = []
    for case in LOADING_CASES:
        found += complaints(case.name, loading, (case.subject.format(name=case.name), *case.expected))
    shown = loading.output if found else ""
    # These wheels cannot be installed, and a query installs none.
    asked = bazel.run("query", "deps(@wrong_hash//iniconfig)")
    if asked.status:
        found.append("a query of a hub: Bazel failed")
        shown += asked.output
    for command in COMMAND_CASES:
        given = [argument.format(workspace=bazel.workspace) for argument in command.arguments]
        done = bazel.run(given[0], *given[1:])
        wrong = complaints(command.name, done, command.expected)
        found += wrong
        shown += done.output if wrong else ""
    if shown:
        sys.stderr.write(shown)
    return found


def main() -> int:
    """Check, and report on stderr."""
    program = sys.argv[1] if len(sys.argv) > 1 else ""
    with scratch_folder("errors_check") as scratch:
        folder = scratch / "consumer"
        folder.mkdir()
        write_files(folder)
        with nested_bazel(folder, scratch / "output", bazel=program) as bazel:
            found = check(bazel)
    for complaint in found:
        sys.stderr.write(f"errors_check.py: {complaint}\n")
    count = len(LOADING_CASES) + len(COMMAND_CASES)
    sys.stderr.write(f"errors_check.py: {count} cases, {len(found)} complaints\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
