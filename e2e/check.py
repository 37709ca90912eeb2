"""Check the library in consumers' workspaces: `python3 -m e2e.check [name ...]`, from the root of the repository.

Each folder beside this file is a workspace of its own that uses the library like any consumer:

everyday    What a team does on an ordinary day: the README's example, tests that five packages run, tests that start
            interpreters, a rule of its own; on GPUs that are promised; coverage; a program without Bazel.
bzlmod      With modules: its own toolchain and hub, and its own packages with the names of the library's folders.
workspace   Without modules; Bazel 7 is the last release that allows this.
wheels      Hubs of locked wheels: two locks in one invocation, the archive for workers, programs of packages.
pythons     Two Pythons in one invocation, with the wheels of each.
queries     Only for queries: every command of docs/selection.md runs here. Its tests are never run.
add_on      A project with an add-on of its own (docs/add_ons.md), by Bazel and installed by pip.
mine        Has no folder: `tools/init` makes it, as docs/consumers.md says and shows.

A test cannot start Bazel, so this is a program. Exit status 0 when everything is as expected.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from e2e.first_week import command_problems
from e2e.pages import CONSUMERS, make_mine, page_problems
from e2e.problems import SHOWN, TESTS_FAILED, problems
from e2e.questions import answers_problems
from e2e.stranger import WRONG, installed_problems
from tests.support.nested_bazel import ROOT, Done, NestedBazel, nested_bazel, scratch_folder

# The versions in the lock file of these workspaces.
TORCH = "torch==2.13.0+cpu"

ADD_ONS = ROOT / "docs" / "add_ons.md"
BACKENDS = ROOT / "docs" / "backends.md"
WHEELS = ROOT / "docs" / "wheels.md"

REPORT = (
    r"wrong_gloo, case {file}::test_wrong \(world of 2\): rank 1 raised AssertionError: rank 1 is wrong on purpose",
    r"This case alone: bazel test {label} --test_filter=test_wrong$",
)


def check_everyday(bazel: NestedBazel) -> list[str]:
    """Check what a team does on an ordinary day."""
    found = problems(
        "everyday: everything",
        bazel.run("test", "--test_output=errors", "//..."),
        status=0,
        parts=(
            r"^//readme:all_reduce_gloo +(\(cached\) )?PASSED",
            r"^//readme:all_reduce_nccl +SKIPPED",
            r"^//readme:everywhere_(threaded|gloo) +(\(cached\) )?PASSED",
            r"^//child:children_gloo +(\(cached\) )?PASSED",
            r"^//own_rule:all_reduce_threaded +(\(cached\) )?PASSED",
            "11 tests pass and 6 were skipped",
        ),
    )
    # As many GPUs as the tests ask for. Bazel analyses every test and runs none.
    promise = "--@dist_testing//dist_testing/config:gpus=16"
    found += problems(
        "everyday: on promised GPUs",
        bazel.run("build", "--nobuild", promise, "//..."),
        status=0,
        parts=(r"Analyzed \d+ targets",),
    )
    found += problems(
        "everyday: a quarantine of the workspace",
        bazel.run(
            "test",
            "--@dist_testing//dist_testing/config:quarantine=//readme:quarantine.toml",
            "--test_output=all",
            "//readme:all_reduce_gloo",
        ),
        status=0,
        parts=("quarantined: shows that the flag reaches the runner", r"^//readme:all_reduce_gloo +PASSED"),
    )
    actions = bazel.run("aquery", promise, "--output=text", 'mnemonic("PyCompile", //...)')
    found += problems("everyday: actions that compile", actions, status=0, parts=())
    needs = re.findall(r"^ *ExecutionInfo: .*(?:cpu|resources|requires-gpu[^:]*):.*", actions.stdout, re.MULTILINE)
    found += [f"everyday: an action that compiles a source waits for what tests need: {need}" for need in needs[:3]]
    found += problems(
        "everyday: tags of a rule of its own",
        bazel.run("query", 'attr(tags, "company", tests(//own_rule:all))'),
        status=0,
        parts=("//own_rule:all_reduce_gloo\n//own_rule:all_reduce_threaded",),
    )
    built = bazel.run("build", "//one:shapes_gloo")
    program = [str(bazel.workspace / "bazel-bin" / "one" / "shapes_gloo"), "-k", "matrix"]
    if built.status == 0:
        run = subprocess.run(program, capture_output=True, text=True, check=False, cwd="/")
        built = Done(run.returncode, run.stdout, run.stderr)
    found += problems("everyday: a program without Bazel", built, status=0, parts=("1 passed",))
    for flags, covered in (
        (["--instrumentation_filter=//shared"], ["shared/base.py"]),
        # Reports have the sources of tests only on request, as with py_test.
        (["--instrumentation_filter=//shared,//one"], ["shared/base.py"]),
        (["--instrumentation_filter=//one", "--instrument_test_targets"], ["shared/test_shapes.py"]),
    ):
        ended = bazel.run("coverage", *flags, "//one:shapes_gloo")
        passed = (r"^//one:shapes_gloo +(\(cached\) )?PASSED",)
        found += problems(f"everyday: coverage {flags}", ended, status=0, parts=passed)
        report = bazel.workspace / "bazel-testlogs" / "one" / "shapes_gloo" / "coverage.dat"
        files = re.findall(r"^SF:(.+)", report.read_text(encoding="utf-8"), re.MULTILINE) if report.exists() else []
        found += [] if files == covered else [f"everyday: with {flags} the coverage report has {files}"]
    return found


def check_bzlmod(bazel: NestedBazel) -> list[str]:
    """Check a consumer with modules."""
    found = problems(
        "bzlmod: everything",
        bazel.run("test", "--test_output=errors", "//..."),
        status=0,
        parts=(
            r"^//tests:sum_gloo +PASSED",
            r"^//tests:sum_nccl +SKIPPED",
            # The consumer's own backend, from one declaration: as a target, and under plain pytest.
            r"^//ring:ring_ring +PASSED",
            r"^//ring:ring_gloo +PASSED",
            r"^//ring:plain_pytest +PASSED",
            # The conformance kit on it, and on it with a bug.
            r"^//ring:conformance_ring +PASSED",
            r"^//ring:finds_bug +PASSED",
            "6 tests pass and 1 was skipped",
        ),
    )
    found += problems(
        "bzlmod: a test that fails",
        bazel.run("test", "--test_output=errors", "//tests:wrong_gloo"),
        status=TESTS_FAILED,
        parts=[part.format(file=r"tests/test_wrong\.py", label="//tests:wrong_gloo") for part in REPORT],
    )
    # As on a machine without GPUs: the folder has no device nodes.
    bare = f"--repo_env=DIST_TESTING_HOST_ROOT={bazel.workspace}"
    promise = "--@dist_testing//dist_testing/config:gpus=16"
    for flags, said in (
        ([bare, "--config=gpu"], "all the GPUs that tests ask for"),
        ([bare, "--config=gpu", promise], r"16 GPU\(s\)"),
    ):
        found += problems(
            f"bzlmod: GPUs that are not there, promised by {flags[-1]}",
            bazel.run("test", "--test_output=errors", *flags, "//tests:sum_nccl"),
            status=TESTS_FAILED,
            parts=(rf"promises {said}", r"found \d+", r"^//tests:sum_nccl +FAILED"),
        )
    program = bazel.stand_in(bazel.output_root)
    job = ("@dist_testing//tools/ci", "--", "test", f"--bazel={program}", *bazel.common, "//...")
    found += problems(
        "bzlmod: a CI job",
        bazel.run("run", *job),
        status=0,
        parts=(r"^SKIPPED BY BAZEL  //tests:sum_nccl", r"^cases: \d+ passed$", r"^ci: green: "),
    )
    for query, answer in (
        ('attr(tags, "gpus_ge_16", tests(//...))', "//tests:sum_nccl"),
        ('attr(tags, "backend:ring", tests(//...))', "//ring:conformance_ring\n//ring:ring_ring"),
        # A backend brings its library, and only to its own tests.
        (
            'attr(deps, "//ring:process_group", tests(//ring:all)) - //ring:plain_pytest - //ring:finds_bug',
            "//ring:conformance_ring\n//ring:ring_ring",
        ),
    ):
        asked = bazel.run("query", query)
        found += problems(f"bzlmod: query {query}", asked, status=0, parts=(rf"\A{answer}\n(?!/)",))
    return found


def check_workspace(bazel: NestedBazel) -> list[str]:
    """Check a consumer without modules."""
    done = bazel.run("test", "--test_output=errors", "--keep_going", "//...", "//:wrong_gloo")
    verdicts = (r"^//:sum_gloo +PASSED", r"^//:sum_nccl +SKIPPED", r"^//:wrong_gloo +FAILED")
    report = [part.format(file=r"test_wrong\.py", label="//:wrong_gloo") for part in REPORT]
    return problems("workspace: everything", done, status=TESTS_FAILED, parts=(*verdicts, *report))


def check_wheels(bazel: NestedBazel) -> list[str]:
    """Check a consumer of the extension for wheels alone."""
    archive = "--@dist_testing//wheels:form=archive"
    # The last one takes nothing from the hub, so its result stays in the cache.
    tests = ("//:default", "//:own_lock", "//:by_requirement", "//separate:merged")
    passed = [rf"^{test} +(\(cached\) )?PASSED" for test in tests]
    both = [rf"^//:{name} +PASSED" for name in ("default", "own_lock")]
    found = []
    for what, arguments, status, parts in (
        ("two locks in one invocation", ("test", "--test_output=errors", "//..."), 0, [*passed, "4 tests pass"]),
        ("as an archive", ("test", "--test_output=errors", archive, "//..."), 0, [*passed, "4 tests pass"]),
        ("the other lock for everything", ("test", "--config=cuda", "//:default", "//:own_lock"), 0, both),
        (
            "a package of one lock alone",
            ("build", "--config=cuda", "//:pyflakes"),
            1,
            ['The lock "cuda" of the hub "pypi" has no package "pyflakes"', 'Only "cpu", "rocm" have it'],
        ),
        ("the metadata", ("cquery", "--output=files", "//:metadata"), 0, [r"iniconfig/dist_info/METADATA$"]),
        ("a program", ("run", "//:pyflakes", "--", "--version"), 0, [r"^3\.2\.0 Python 3\.11"]),
        ("a program in the archive", ("run", archive, "//:pyflakes", "--", "--version"), 0, [r"^3\.2\.0 Python 3\.11"]),
        (
            "a program that no package has",
            ("run", "//:unknown_script"),
            1,
            ["no package has a program 'nothing'", r"The programs are: .*pyflakes"],
        ),
    ):
        found += problems(f"wheels: {what}", bazel.run(*arguments), status=status, parts=parts)
    return found


def check_pythons(bazel: NestedBazel) -> list[str]:
    """Check a consumer with two Pythons. Each test asserts its Python, and that the hub's compiled wheel is for it."""
    everything = bazel.run("test", "--test_output=errors", "//...")
    if "python.toolchain(): Python 3.12 was not found on PATH" in everything.output:
        # Released rules_python downloads it; Debian's takes those of the machine.
        sys.stderr.write("e2e.check: pythons: NOT RUN, because this machine has no Python 3.12\n")
        return []
    tests = ("//:default", "//:on_3_11", "//:on_3_12")
    found = problems(
        "pythons: two in one invocation",
        everything,
        status=0,
        parts=(*(rf"^{test} +PASSED" for test in tests), "3 tests pass"),
    )
    flag = "--@rules_python//python/config_settings:python_version"
    wheels = 'filter("//:directory$", filter("default_3_1", deps(//:worlds_gloo)))'
    for what, arguments, status, parts in (
        ("the other one for all", ("test", "--config=python_3_12", "//:chosen", "//:on_3_11"), 0, ["2 tests pass"]),
        ("dist_py_test", ("cquery", wheels), 0, [r"\A([^\n]+default_3_12//:directory [^\n]+\n)+(?!@)"]),
        (
            "one without a lock",
            ("build", f"{flag}=3.13", "@pypi//markupsafe"),
            1,
            ['"markupsafe" for Python 3.11 and 3.12, and not for Python 3.13', r'python_version = "3\.13", \.\.\.\)'],
        ),
        (
            "the interpreter of the other one",
            ("build", "//:other_interpreter"),
            1,
            [r"this interpreter is Python 3\.11\.\d+, and its lock is for Python 3\.12", "@python_3_12_host//:python"],
        ),
    ):
        found += problems(f"pythons: {what}", bazel.run(*arguments), status=status, parts=parts)
    return found


def check_add_on(bazel: NestedBazel) -> list[str]:
    """Check an add-on of another project."""
    verdicts = [
        rf"^//:{name} +(\(cached\) )?PASSED"
        for name in ("key_value_test_gloo", "key_value_test_threaded", "without_gloo")
    ]
    everything = bazel.run("test", "--test_output=errors", "--keep_going", "//...", "//:wrong_gloo")
    found = problems("add_on: everything", everything, status=TESTS_FAILED, parts=(*verdicts, *WRONG))
    return found + installed_problems(bazel.workspace)


def check_queries(bazel: NestedBazel) -> list[str]:
    """Check the commands of docs/selection.md."""
    return answers_problems(bazel, ROOT / "docs" / "selection.md")


def check_mine(bazel: NestedBazel) -> list[str]:
    """Check the commands of docs/consumers.md in the repository that it shows."""
    return command_problems(bazel, CONSUMERS)


def drift_problems() -> list[str]:
    """Say in what the consumers here differ from what `tools/init` finds right, in repositories of several kinds."""
    found = []
    for name in ("bzlmod", "workspace", "queries"):
        command = [sys.executable, str(ROOT / "tools" / "init" / "init.py"), "--check", f"--dir={ROOT / 'e2e' / name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found += problems(f"{name}: tools/init", Done(done.returncode, done.stdout, done.stderr), status=0, parts=())
    return found


def lock_problems() -> list[str]:
    """Say which packages of the lock file are not the oldest releases that the library admits, except torch."""
    lock = (ROOT / "e2e" / "requirements.txt").read_text(encoding="utf-8")
    table = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    pins = [f"{name}=={version}" for name, version in table["oldest_packages"].items()]
    return [
        f"requirements.txt: not {pin}, the oldest that dist_testing/versions.json admits"
        for pin in pins
        if not re.search(rf"^{re.escape(pin)}(\.0)* ", lock, re.MULTILINE)
    ]


CHECKS: dict[str, Callable[[NestedBazel], list[str]]] = {
    "everyday": check_everyday,
    "bzlmod": check_bzlmod,
    "workspace": check_workspace,
    "wheels": check_wheels,
    "pythons": check_pythons,
    "add_on": check_add_on,
    "queries": check_queries,
    "mine": check_mine,
}


def index_options() -> tuple[str, ...]:
    """Return options that name PyTorch's own index, if the machine's pip does not find torch's CPU build without it."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", TORCH]
    found = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return () if found else ("--config=pytorch_index",)


def repository_options(bazel: NestedBazel) -> tuple[str, ...]:
    """Return options that take the rules from the place where the machine's Bazel takes them as modules.

    A Bazel from bazelw may bring its own rules, because it cannot download any. It names them in options for modules,
    and repositories without modules ignore these options. Any other Bazel needs none of this.
    """
    done = bazel.run("info", "--announce_rc", "release")
    if done.status:
        raise SystemExit(f"e2e.check: Bazel does not print its options\n{done.output[-SHOWN:]}")
    overrides = re.findall(r"--override_module=(.+?)(?= --|$)", done.stderr, re.MULTILINE)
    options = [f"--override_repository={override}" for override in overrides]
    # After all files of options, because one of them may have switched it off.
    return ("--enable_workspace", *options) if options else ()


def main() -> int:
    """Run the selected checks."""
    parser = argparse.ArgumentParser(description="Check the library in consumers' workspaces.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(CHECKS)}; default: all")
    parser.add_argument("--bazel", default="", help="default: ./bazelw")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep Bazel's outputs here, for the next run")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(CHECKS)):
        parser.error(f"no consumer is named {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    found = [text for page in (CONSUMERS, ADD_ONS, BACKENDS, WHEELS) for text in page_problems(page)]
    found += drift_problems() + lock_problems()
    with ExitStack() as stack:
        output = options.output.absolute() if options.output else stack.enter_context(scratch_folder("e2e"))
        index = index_options()
        for name in options.names or CHECKS:
            start = time.monotonic()
            common = index if name in ("bzlmod", "workspace") else ()
            if name == "workspace":
                with nested_bazel(ROOT / "e2e" / "queries", output, bazel=options.bazel) as other:
                    common += repository_options(other)
            folder = ROOT / "e2e" / name
            if name == "mine":
                folder = make_mine(CONSUMERS, stack.enter_context(scratch_folder("e2e.mine")))
            with nested_bazel(folder, output, bazel=options.bazel, common=common) as bazel:
                wrong = CHECKS[name](bazel)
            took = f"{time.monotonic() - start:.0f} s"
            sys.stderr.write(f"e2e.check: {name}: {'as expected' if not wrong else 'WRONG'} after {took}\n")
            found += wrong
    for text in found:
        sys.stderr.write(f"e2e.check: {text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
