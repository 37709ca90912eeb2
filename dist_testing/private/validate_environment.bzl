"""Checks the environment of a test. Every function returns a list of error texts (see problems.bzl).

Bazel itself checks that names and values are strings.
"""

load("//dist_testing/private:problems.bzl", "problem", "shown")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Linux starts no program with a longer variable: its name, "=", its value and the zero at its end (MAX_ARG_STRLEN).
MAX_VARIABLE_BYTES = 128 * 1024

# dist_testing sets these on every rank, or Bazel sets them for the runner. Another value would be lost.
_RESERVED = [
    "COVERAGE_DIR",
    "COVERAGE_MANIFEST",
    "COVERAGE_OUTPUT_FILE",
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "TEST_PREMATURE_EXIT_FILE",
    "TEST_SHARD_INDEX",
    "TEST_SHARD_STATUS_FILE",
    "TEST_SRCDIR",
    "TEST_TIMEOUT",
    "TEST_TMPDIR",
    "TEST_TOTAL_SHARDS",
    "TEST_UNDECLARED_OUTPUTS_DIR",
    "TEST_WARNINGS_OUTPUT_FILE",
    "TEST_WORKSPACE",
    "WORLD_SIZE",
    "XML_OUTPUT_FILE",
]
_RESERVED_PREFIXES = [
    "DIST_TESTING_BACKEND",
    "DIST_TESTING_GPU_PROMISE",
    "DIST_TESTING_PROGRAM_",
    "DIST_TESTING_SPEC",
    "DIST_TESTING_TIMINGS",
    "RUNFILES_",
    "TESTBRIDGE_",
]

def env_problems(env):
    """Checks the argument `env`.

    Args:
        env: The argument.

    Returns:
        A list of error texts.
    """
    if type(env) == "select":
        # Checked when the target is analysed (select_check.bzl).
        return []
    if type(env) != "dict":
        return [problem(
            "env = {}".format(shown(env)),
            "It is a dict from names of variables to strings, or a select() of dicts.",
            "Use, for example, env = {\"NCCL_DEBUG\": \"INFO\"}.",
        )]
    problems = []
    for name, value in env.items():
        problems += _name_problems("env: {} = {}".format(name or repr(name), repr(value)), name)
    return problems

def env_inherit_problems(env_inherit):
    """Checks the argument `env_inherit`.

    Args:
        env_inherit: The argument: a list, or a select() of lists, which hides the names.

    Returns:
        A list of error texts.
    """
    problems = []
    for name in env_inherit if type(env_inherit) == "list" else []:
        problems += _name_problems("env_inherit: {}".format(repr(name)), name)
    return problems

def spec_problems(spec, srcs):
    """Checks that Linux can start a test with the variable that tells its runner what to run.

    Args:
        spec: Value of the variable, with "$" doubled against Bazel's expansion of variables.
        srcs: The files that it names.

    Returns:
        A list of error texts.
    """
    bytes = len("DIST_TESTING_SPEC=") + len(spec.replace("$$", "$")) + 1
    if bytes <= MAX_VARIABLE_BYTES:
        return []
    return [problem(
        "srcs has {} files; DIST_TESTING_SPEC, which names them to the runner, has {} bytes.".format(len(srcs), bytes),
        "Linux starts no program with a variable of more than {}, so the test could not start.".format(MAX_VARIABLE_BYTES),
        "Split the target: several calls of dist_py_test, each with a part of the files.",
    )]

def _name_problems(subject, name):
    if type(name) != "string":
        # Bazel reports it.
        return []
    if not name or "=" in name:
        # Bazel's server crashes when it starts a test with such a variable.
        return [problem(subject, "The name of a variable is not empty and has no \"=\".", "Correct the name.")]
    if name in _RESERVED or any([name.startswith(prefix) for prefix in _RESERVED_PREFIXES]):
        return [problem(
            subject,
            "dist_testing sets that variable on every rank, or Bazel sets it for the runner.",
            "Drop it. A test reads these values from its `world`.",
        )]
    return []
