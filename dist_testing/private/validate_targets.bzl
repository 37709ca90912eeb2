"""What dist_py_test refuses of the arguments that Bazel knows, too: names, files, time, tags, environment.

Every function here returns a list of texts (see problems.bzl). An empty list means that there is nothing to say.
"""

load("//dist_testing/private:problems.bzl", "by_backend", "choice_problems", "is_int", "problem")
load("//dist_testing/private:tags.bzl", "is_reserved_tag")

SIZES = ["small", "medium", "large", "enormous"]
TIMEOUTS = ["short", "moderate", "long", "eternal"]

# Bazel's own limit.
MAX_SHARDS = 50

# The execution group of the action that runs a test. Without it a property is one of every action of the target.
_TEST_GROUP = "test."

# Set on every rank by the library, or for the runner by Bazel. A value from `env` would be overwritten.
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

# Attributes of py_test that the macro sets.
_MACRO_ATTRIBUTES = {
    "legacy_create_init": "An `__init__.py` that is in no source tree may hide the library; tests do without.",
    "main": "The library's own main runs the cases; put them in srcs.",
    "main_module": "The library's own main runs the cases; put them in srcs.",
    "srcs_version": "It has had no meaning since Python 2.",
}

def name_problems(name):
    """Checks the argument `name`."""
    if type(name) == "string" and name:
        return []
    return [problem(
        "name = {}".format(repr(name)),
        "It is a target's name, and the first part of the names of the targets for each backend.",
        "Give a text that is not empty.",
    )]

def collision_problems(names, find):
    """Checks that no name is taken that the macro is about to use.

    Args:
        names: Names of targets, each with what it is for, as a dict.
        find: Function that gives the kind of the package's target of a name, or None.

    Returns:
        A list of texts.
    """
    return [
        problem(
            ":{} is there already, a {}.".format(name, find(name)),
            "dist_py_test needs that name for {}.".format(names[name]),
            "Rename one of the two.",
        )
        for name in names
        if find(name) != None
    ]

def srcs_problems(srcs):
    """Checks the argument `srcs`."""
    if type(srcs) != "list" or not srcs:
        return [problem(
            "srcs = {}".format(repr(srcs) if type(srcs) in ("list", "NoneType", "string") else type(srcs)),
            "A list of at least one Python file is needed: the cases come from these files and nowhere else.",
            "Name the test files. What differs by platform belongs in deps or data, which may be a select().",
        )]
    return [
        problem(
            "srcs = {}: {} is not a Python file.".format(repr(srcs), repr(source)),
            "Every file in srcs is searched for cases.",
            "Put data files in data and other targets in deps.",
        )
        for source in srcs
        if type(source) not in ("string", "Label") or not str(source).endswith(".py")
    ]

def lists_problems(arguments):
    """Checks arguments that the macro adds to before Bazel sees them.

    Args:
        arguments: Their values by name.

    Returns:
        A list of texts.
    """
    return [
        problem(
            "{} = {}".format(name, repr(value)),
            "It is a list, or a select() of lists.",
            "Write the labels or texts in brackets, or drop it for none.",
        )
        for name, value in arguments.items()
        if type(value) not in ("list", "select")
    ]

def time_problems(size, timeout):
    """Checks the arguments `size` and `timeout`.

    Args:
        size: Bazel's size, or None for its default.
        timeout: Bazel's named timeout, or None for its default.

    Returns:
        A list of texts.
    """
    problems = []
    if size != None:
        problems += choice_problems("size", size, SIZES, "It is Bazel's size of a test.")
    if timeout != None:
        problems += choice_problems("timeout", timeout, TIMEOUTS, "Bazel has four named timeouts; seconds are given with --test_timeout.")
    return problems

def shard_count_problems(shard_count, backends):
    """Checks the argument `shard_count`: None, an int, or a dict of int by backend.

    Args:
        shard_count: The argument.
        backends: The target's backends, already checked.

    Returns:
        A list of texts.
    """
    if shard_count == None:
        return []
    values, problems = by_backend("shard_count", shard_count, backends)
    for argument, value, _backend in values:
        text = problem(
            "{} = {}".format(argument, repr(value)),
            "It is the number of shards that the cases are dealt to: a whole number from 1 to {}.".format(MAX_SHARDS),
            "Use a number or a dict by backend, or drop it for one shard.",
        )
        if (not is_int(value) or value < 1 or value > MAX_SHARDS) and text not in problems:
            problems.append(text)
    return problems

def tags_problems(tags):
    """Checks the argument `tags`: those that the macro computes cannot be given."""
    if type(tags) != "list" or [tag for tag in tags if type(tag) != "string"]:
        return [problem(
            "tags = {}".format(repr(tags)),
            "Tags are a list of texts.",
            "Use, for example, tags = [\"manual\"].",
        )]
    return [
        problem(
            "tags = {}: \"{}\" is set by dist_py_test.".format(repr(tags), tag),
            "It follows from backends, world_size and gpus_per_rank; by hand it could say something else.",
            "Drop it.",
        )
        for tag in tags
        if is_reserved_tag(tag)
    ]

def env_problems(env):
    """Checks the names in the argument `env`."""
    if type(env) != "dict":
        return [problem(
            "env = {}".format(repr(env) if type(env) != "select" else "select(...)"),
            "It is a dict from names of variables to texts; a select() could hide a name that is ours.",
            "Use, for example, env = {\"NCCL_DEBUG\": \"INFO\"}.",
        )]
    return [
        problem(
            "env: {} = {}".format(name, repr(env[name])),
            "That variable is set on every rank by dist_testing, or by Bazel for its test runner.",
            "Drop it. A test reads these values from its `world`.",
        )
        for name in env
        if type(name) == "string" and (name in _RANK_VARIABLES or any([name.startswith(prefix) for prefix in _RUNNER_PREFIXES]))
    ]

def exec_properties_problems(exec_properties):
    """Checks the argument `exec_properties`: only properties of the test action are right."""
    if type(exec_properties) != "dict":
        return [problem(
            "exec_properties = {}".format(repr(exec_properties) if type(exec_properties) != "select" else "select(...)"),
            "It is a dict of properties for remote executors; a select() could hide one that is not the test's alone.",
            "Use, for example, exec_properties = {\"test.Pool\": \"large\"}.",
        )]
    return [
        problem(
            "exec_properties: {} = {}".format(repr(name), repr(exec_properties[name])),
            "Without \"{}\" it is a property of every action of the target, and builds wait for GPU workers.".format(_TEST_GROUP),
            "Write \"{}{}\".".format(_TEST_GROUP, name),
        )
        for name in exec_properties
        if type(name) != "string" or not name.startswith(_TEST_GROUP)
    ]

def attributes_problems(attributes):
    """Checks the names of the attributes that are passed on to py_test."""
    return [
        problem(
            "{} = {}".format(name, repr(attributes[name])),
            _MACRO_ATTRIBUTES[name],
            "Drop it.",
        )
        for name in attributes
        if name in _MACRO_ATTRIBUTES
    ]
