"""Check the error texts for wrong BUILD files and machines: `python3 -m tests.starlark.errors_check [bazel]`.

Such errors end Bazel before a test could run, so this is a program that runs Bazel: `bazel`, or
`./bazelw` when none is named. It makes a consumer's workspace in a temporary folder, with one package
for each wrong call, and reads the error texts. Exit status 0 when each text has the expected parts.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

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


class Wrong(NamedTuple):
    """A wrong BUILD file, or a command that fails: its name, its text, and parts of the error text."""

    name: str
    text: str
    expected: list[str]


RIGHT = 'srcs = ["a.py"], backends = ["gloo"], world_size = 2'
RING = 'name = "ring", torch_backend = "ring", device = "cpu", register_module = "ring"'

# Each case: the name of its package, what its BUILD file has, and parts of the error text behind ">". RIGHT stands for
# the arguments of a right call, RING for those of a right declaration. The other files of this folder have the texts of
# single arguments; here each check must be asked once.
_LOADING = """\
unknown_backend
dist_py_test(name = "case", srcs = ["a.py"], backends = ["ncl"], world_size = 2)
> dist_py_test //unknown_backend:case: backends = ["ncl"]: "ncl" is not a backend. Did you mean "nccl"?
> dist_testing declares these: cuda_gloo, fake, gloo,
> Use one of them, or the value of declare_backend(...) itself (docs/backends.md).

backend_of_another_type
declare_backend(RING, timeout_s = "60", in_process = 1)
> declare_backend(name = "ring"): in_process = 1
> needs bool
> and timeout_s = "60"
> Its type is string, and a backend needs int.

backend_with_an_unknown_argument
declare_backend(RING, vendr = "amd")
> declare_backend() got unexpected keyword argument
> vendr

backend_with_a_taken_name
GLOO = declare_backend(name = "gloo", torch_backend = "other", device = "cpu")
dist_py_test(name = "case", srcs = ["a.py"], backends = [GLOO], world_size = 2)
> dist_py_test //backend_with_a_taken_name:case:
> "gloo" is declared twice.
> dist_testing declares a backend of that name.

backend_declared_twice
A = declare_backend(RING)
B = declare_backend(RING, timeout_s = 5)
dist_py_test(name = "case", srcs = ["a.py"], backends = [A, B], world_size = 2)
> dist_py_test //backend_declared_twice:case: backends = ["ring", "ring"]: "ring" is declared twice.
> Give one of them another name.

backend_declared_wrongly
declare_backend(name = "Wrong", torch_backend = "cpu:gloo,nccl", device = "cudda", features = ["telepathy"], \
vendor = "nvida", timeout_s = 0, shares_gpus = True, env = {"A": 1}, deps = [":relative"])
> declare_backend(name = "Wrong"): name = "Wrong"
> and feature "telepathy" is not known.
> and torch_backend = "cpu:gloo,nccl"
> and device = "cudda" without register_module. Did you mean "cuda"?
> and vendor = "nvida" with gpus_per_rank = 0
> and shares_gpus = True with gpus_per_rank = 0
> and timeout_s = 0
> and env: "A" = 1
> and deps: ":relative"

no_backend
dist_py_test(name = "case", srcs = ["a.py"], backends = [], world_size = 2)
> dist_py_test //no_backend:case: backends = []

everything
dist_py_test(name = "case", srcs = [], backends = ["gloo"], world_size = 0, gpus_per_rank = 1, isolation = "x", \
shard_count = {"nccl": 2}, timings = 5, deps = "//x", settings = 10, tags = ["gpus:4"], env = {"RANK": "0"}, \
env_inherit = ["RANK"], exec_properties = {"Pool": "gpu"}, lock = "cudda", main = "a.py")
> dist_py_test //everything:case: world_size = 0
> and gpus_per_rank = 1
> and isolation = "x"
> and shard_count = {"nccl": 2}: the key "nccl" is not in backends
> and srcs = []
> and timings = 5
> and deps = "//x"
> and settings = 10
> "gpus:4" is set by dist_py_test
> and env: RANK = "0"
> and env_inherit: "RANK"
> and exec_properties: "Pool" = "gpu"
> Write "test.Pool".
> and lock = "cudda". Did you mean "cuda"?
> and main = "a.py"

unknown_lock_of_a_library
load("@dist_testing//wheels:defs.bzl", "with_lock")
with_lock(name = "case", library = ":a", lock = "rocm")
> with_lock //unknown_lock_of_a_library:case:
> lock = "rocm"
> Use one of: cpu, cuda,

inherits_a_text
dist_py_test(name = "case", RIGHT, env_inherit = "A")
> dist_py_test //inherits_a_text:case:
> env_inherit = "A"
> a list, or a select() of lists

too_many_gpus
dist_py_test(name = "case", srcs = ["a.py"], backends = ["nccl"], world_size = 32)
> dist_py_test //too_many_gpus:case:
> world_size 32 x gpus_per_rank 1 = 32 GPUs

uneven_nodes
dist_py_test(name = "case", RIGHT, nodes = 3)
> dist_py_test //uneven_nodes:case:
> nodes = 3 with world_size = 2
> must divide

too_many_sources
dist_py_test(name = "case", srcs = ["test_with_a_long_name_%d.py" % i for i in range(3000)], backends = ["gloo"], \
world_size = 2)
> dist_py_test //too_many_sources:case:
> srcs has 3000 files; DIST_TESTING_SPEC
> Split the target

name_is_a_number
dist_py_test(name = 3, RIGHT)
> dist_py_test in //name_is_a_number: name = 3

name_is_a_wildcard
dist_py_test(name = "all", RIGHT)
> dist_py_test //name_is_a_wildcard:all: name = "all"
> every target of the package

suites_of_manual_tests
dist_py_test(name = "case", RIGHT, tags = ["manual"])
dist_test_suites()
> dist_test_suites //suites_of_manual_tests:all:
> No dist_py_test that is not manual stands above this call.
> Put it at the end

suites_without_a_name
dist_py_test(name = "case", RIGHT)
dist_test_suites(name = "")
> dist_test_suites in //suites_without_a_name:
> name = ""

suite_of_another_backend
dist_py_test(name = "case", RIGHT)
dist_test_suites(backends = ["nccl"])
> dist_test_suites //suite_of_another_backend:all:
> no test above uses "nccl"
> The tests above use: gloo.

bazel_knows_a_taken_name
filegroup(name = "case_gloo")
dist_py_test(name = "case", RIGHT)
> rule 'case_gloo' in package 'bazel_knows_a_taken_name' conflicts with existing filegroup rule

bazel_knows_a_name_that_is_taken_later
dist_py_test(name = "case", RIGHT)
dist_py_test(name = "other", RIGHT)
filegroup(name = "case.spec")
> 'case.spec' in package 'bazel_knows_a_name_that_is_taken_later' conflicts with existing

bazel_knows_suites_that_are_there_twice
dist_py_test(name = "case", RIGHT)
dist_test_suites()
dist_test_suites()
> 'all_gloo' in package 'bazel_knows_suites_that_are_there_twice' conflicts with existing test_suite rule

bazel_knows_sizes
dist_py_test(name = "case", RIGHT, size = "huge")
> size 'huge' is not a valid size.

bazel_knows_timeouts
dist_py_test(name = "case", RIGHT, timeout = "30")
> timeout '30' is not a valid timeout.

bazel_knows_types_of_variables
dist_py_test(name = "case", RIGHT, env = {"A": 1})
> but got 1 (int)

bazel_knows_types_of_names
dist_py_test(name = "case", RIGHT, env_inherit = [3])
> but got 3 (int)

bazel_knows_target_names
dist_py_test(name = "a:b", RIGHT)
> invalid target name 'a:b'

bazel_knows_labels
dist_py_test(name = "case", srcs = ["../a.py"], backends = ["gloo"], world_size = 2)
> invalid target name '../a.py': target names may not contain up-level references
"""


def _read(text: str) -> Iterator[Wrong]:
    for block in text.replace("RIGHT", RIGHT).replace("RING", RING).split("\n\n"):
        name, *lines = block.strip().splitlines()
        calls = "\n".join(line for line in lines if not line.startswith("> "))
        yield Wrong(name, calls, [line[2:] for line in lines if line.startswith("> ")])


LOADING_CASES = tuple(_read(_LOADING))

# The same of Bazel's commands that fail. Nothing listens on port 9; pip reports that only when it tries again.
_COMMANDS = """\
unknown argument
query //unknown_argument:all
> no such attribute 'wolrd_size'

GPU target without GPUs
build --nobuild --@dist_testing//dist_testing/config:gpus=1 //right:case_nccl
> //right:case_nccl is incompatible
> needs_2_nvidia_gpus_but_this_machine_has_fewer

pools that are not declared
build --nobuild --@dist_testing//dist_testing/config:gpus=pools //right:case_nccl
> dist_testing/config:gpus=pools: no pool is declared.
> Declare them (docs/remote.md)

root of the machine that is no folder
build --nobuild --repo_env=DIST_TESTING_HOST_ROOT=here //right:case_gloo
> DIST_TESTING_HOST_ROOT=here: not an absolute path of a folder.
> drop it for the machine's own facts

torch not named
build --nobuild --keep_going //right:case_gloo
> @dist_testing//dist_testing/config:torch is not set, so dist_testing does not know your torch.
> Add to MODULE.bazel, with your own hub's name: dist_testing.packages(hub = "@pypi")
> build --@dist_testing//dist_testing/config:torch=@pypi//torch

no such interpreter
query --repo_env=DIST_TESTING_PYTHON=/nowhere/python3 @local_python//:all
> DIST_TESTING_PYTHON=/nowhere/python3: not a CPython 3.11 or newer
> Correct DIST_TESTING_PYTHON

no interpreter on PATH
query --repo_env=PATH=/nowhere @local_python//:all
> No CPython 3.11 or newer on PATH (python3 is not there
> Install python3

interpreter too old
query '--repo_env=DIST_TESTING_PYTHON={workspace}/python_too_old' @local_python//:all
> python_too_old: it is Python 3.9.2

wheels for an interpreter that vanished
build --nobuild @vanished//iniconfig
> //:python_that_vanished: this interpreter does not run (
> it was removed, or it is for another machine.
> or name another one: wheels.lock(interpreter =

wheels for an interpreter that is too old
build --nobuild @old//iniconfig
> //:python_too_old: Python 3.9.2 is too old.
> 3.11 is the oldest

unknown lock
build --nobuild --@dist_testing//wheels:lock=rocm @right//iniconfig
> //wheels:lock: invalid value 'rocm'
> ["", "cpu", "cuda", "default"]

package of another lock
build --nobuild @right//only_cuda
> The lock "cpu" of the hub "right" has no package "only_cuda".
> Only "cuda" has it
> or choose another lock

wrong hash
build --nobuild @wrong_hash//iniconfig
> The wheels of //:wrong_hash.txt could not be installed
> A wheel is not the file that was locked

no such version
build --nobuild @unknown//iniconfig
> No index that pip knows has that version
> Choose another interpreter

package index out of reach
build --nobuild --repo_env=PIP_INDEX_URL=http://127.0.0.1:9/simple --repo_env=PIP_CONFIG_FILE=/dev/null \
--repo_env=PIP_RETRIES=1 @unknown//iniconfig
> The package index could not be reached.

lock file that is none
query @bad//:all
> //:bad.txt: "this is not a requirement" is not a pinned requirement.
> Lock it again: uv pip compile

lock file without hashes
query @without_hash//:all
> //:without_hash.txt: There is no hash for iniconfig.
> --generate-hashes
"""
COMMAND_CASES = tuple(_read(_COMMANDS))

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
    packages = {case.name: case.text for case in LOADING_CASES}
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


def complaints(name: str, done: Done, expected: Sequence[str]) -> list[str]:
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
        found += complaints(case.name, loading, case.expected)
    shown = loading.output if found else ""
    # These wheels cannot be installed, and a query installs none.
    asked = bazel.run("query", "deps(@wrong_hash//iniconfig)")
    if asked.status:
        found.append("a query of a hub: Bazel failed")
        shown += asked.output
    for command in COMMAND_CASES:
        done = bazel.run(*shlex.split(command.text.format(workspace=bazel.workspace)))
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
