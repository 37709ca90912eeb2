"""The rule of `<name>_<backend>.run`: runs a test on a terminal, for debugging."""

load("@bazel_skylib//lib:shell.bzl", "shell")
load("//dist_testing/private:labels.bzl", "rlocation_path")

# `bazel test` gives a test no terminal, and `bazel run` starts a test target in the environment of a test. This program
# starts the same test with a terminal and without that environment. The test's runfiles are a part of this target's, so
# Bazel builds nothing twice.
_SCRIPT = """\
#!/bin/sh
# Written by dist_py_test. Starts {test} for one person: `bazel run {test}.run -- {example}`.
set -eu
for argument; do
  shift
  case $argument in
    {case}
  esac
  set -- "$@" "$argument"
done
# The tree and not its manifest, which leads into the source tree: a test finds its files as under Bazel.
RUNFILES_DIR=$(cd "$0.runfiles" && pwd)
TEST_WORKSPACE={workspace}
export RUNFILES_DIR TEST_WORKSPACE
unset RUNFILES_MANIFEST_FILE
exec "$RUNFILES_DIR"/{program} "$@"
"""

# Options of a test are pytest's.
_CASE_OF_TESTS = "--rank=*) argument=--dist-debug-rank=${argument#--rank=} ;;"

# All arguments of a program are its own, `--rank` included, except this one.
_CASE_OF_PROGRAM = "--dist-debug-rank=*) export DIST_TESTING_PROGRAM_DEBUG_RANK=${argument#*=}; continue ;;"

def _dist_test_run_impl(ctx):
    test = ctx.attr.test[DefaultInfo]
    program = test.files_to_run.executable
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(
        script,
        _SCRIPT.format(
            case = _CASE_OF_PROGRAM if ctx.attr.is_program else _CASE_OF_TESTS,
            example = "--dist-debug-rank=1" if ctx.attr.is_program else "--rank=1 -k <case>",
            program = shell.quote(rlocation_path(ctx, program)),
            test = ctx.attr.target,
            workspace = ctx.workspace_name,
        ),
        is_executable = True,
    )
    return [
        DefaultInfo(
            executable = script,
            runfiles = ctx.runfiles([program]).merge(test.default_runfiles),
        ),
        ctx.attr.test[RunEnvironmentInfo],
    ]

dist_test_run = rule(
    doc = "Runs a test as a program. `--rank=<n>` gives the terminal to that rank; other arguments are pytest's. If the test is a " +
          "program itself, `--dist-debug-rank=<n>` does so, and other arguments are its own.",
    implementation = _dist_test_run_impl,
    attrs = {
        "data": attr.label_list(allow_files = True, doc = "Targets that `args` may name with $(location)."),
        "deps": attr.label_list(doc = "More targets that `args` may name."),
        "is_program": attr.bool(doc = "Whether the arguments are those of a program, and not pytest's."),
        "target": attr.string(doc = "Label of the test, as a user writes it.", mandatory = True),
        "test": attr.label(
            doc = "The test.",
            mandatory = True,
            providers = [RunEnvironmentInfo],
        ),
    },
    executable = True,
)
