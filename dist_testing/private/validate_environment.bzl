"""What dist_py_test refuses of the environment of a test.

Every function here returns a list of texts (see problems.bzl). An empty list means that there is nothing to say.
"""

load("//dist_testing/private:problems.bzl", "problem", "shown")

# Linux starts no program with a longer variable: its name, "=", its value and the zero at its end (MAX_ARG_STRLEN).
MAX_VARIABLE_BYTES = 128 * 1024

# Set on every rank by the library, or for the runner by Bazel. A value from elsewhere would be overwritten.
_RANK_VARIABLES = [
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
]
_RUNNER_PREFIXES = ["COVERAGE_", "DIST_TESTING_GPU_PROMISE", "DIST_TESTING_SPEC", "DIST_TESTING_TIMINGS", "RUNFILES_", "TESTBRIDGE_", "TEST_", "XML_OUTPUT_FILE"]

def env_problems(env):
    """Checks the argument `env`.

    Args:
        env: The argument.

    Returns:
        A list of texts.
    """
    if type(env) != "dict":
        return [problem(
            "env = {}".format(shown(env)),
            "It is a dict from names of variables to texts; a select() could hide a name that is ours.",
            "Use, for example, env = {\"NCCL_DEBUG\": \"INFO\"}.",
        )]
    problems = []
    for name, value in env.items():
        if type(name) != "string" or type(value) != "string":
            problems.append(problem(
                "env: {} = {}".format(repr(name), repr(value)),
                "The name of a variable and its value are texts.",
                "Put both in quotes.",
            ))
            continue
        bytes = _variable_bytes(name, value)
        if bytes > MAX_VARIABLE_BYTES:
            problems.append(problem(
                "env: {} has {} bytes.".format(name, bytes),
                "Linux starts no program with a variable of more than {}, its name with it.".format(MAX_VARIABLE_BYTES),
                "Put the text into a file, and the file into data.",
            ))
            continue
        subject = "env: {} = {}".format(name or repr(name), repr(value))
        problems += _name_problems(subject, name)
        if "\000" in value:
            problems.append(problem(
                subject,
                "A zero byte ends the value of a variable, so the rest would be lost.",
                "Drop it.",
            ))
    return problems

def env_inherit_problems(env_inherit):
    """Checks the names in the argument `env_inherit`.

    Args:
        env_inherit: The argument, a list, or a select() of lists, whose names nobody knows yet.

    Returns:
        A list of texts.
    """
    if type(env_inherit) != "list":
        return []
    problems = []
    for name in env_inherit:
        subject = "env_inherit: {}".format(repr(name))
        if type(name) == "string":
            problems += _name_problems(subject, name)
        else:
            problems.append(problem(subject, "The name of a variable is a text.", "Put it in quotes."))
    return problems

def spec_problems(spec, srcs):
    """Checks that a test can be started with the variable that tells its runner what to run.

    Args:
        spec: Value of the variable, escaped against the expansion of others.
        srcs: The files that it names.

    Returns:
        A list of texts.
    """
    bytes = _variable_bytes("DIST_TESTING_SPEC", spec.replace("$$", "$"))
    if bytes <= MAX_VARIABLE_BYTES:
        return []
    return [problem(
        "srcs has {} files; DIST_TESTING_SPEC, which names them to the runner, has {} bytes.".format(len(srcs), bytes),
        "Linux starts no program with a variable of more than {}, so the test could not be started.".format(MAX_VARIABLE_BYTES),
        "Split the target: several calls of dist_py_test, each with a part of the files.",
    )]

def _name_problems(subject, name):
    # Bazel's server ends over such a name.
    for wrong, fault in [(not name, "nothing in it"), ("=" in name, "a \"=\""), ("\000" in name, "a zero byte")]:
        if wrong:
            return [problem(subject, "It names a variable, and no name has {}.".format(fault), "Correct the name.")]
    if name in _RANK_VARIABLES or any([name.startswith(prefix) for prefix in _RUNNER_PREFIXES]):
        return [problem(
            subject,
            "That variable is set on every rank by dist_testing, or by Bazel for its test runner.",
            "Drop it. A test reads these values from its `world`.",
        )]
    return []

def _variable_bytes(name, value):
    return len(name) + len("=") + len(value) + 1
