"""What dist_py_test refuses of the arguments that Bazel knows, too: time, shards, tags, properties.

Every function here returns a list of texts (see problems.bzl). An empty list means that there is nothing to say.
"""

load("//dist_testing/private:problems.bzl", "by_backend", "choice_problems", "is_int", "problem", "shown")
load("//dist_testing/private:tags.bzl", "cpu_tags", "is_reserved_tag")

SIZES = ["small", "medium", "large", "enormous"]
TIMEOUTS = ["short", "moderate", "long", "eternal"]

# Bazel's own limit.
MAX_SHARDS = 50

# The execution group of the action that runs a test. Without it a property is one of every action of the target.
_TEST_GROUP = "test."

# The largest number that Bazel reads in a tag.
_MAX_CPUS = (1 << 31) - 1

# Attributes of py_test that the macro sets.
_MACRO_ATTRIBUTES = {
    "legacy_create_init": "An `__init__.py` that is in no source tree may hide the library; tests do without.",
    "main": "The library's own main runs the cases; put them in srcs.",
    "main_module": "The library's own main runs the cases; put them in srcs.",
    "srcs_version": "It has had no meaning since Python 2.",
}

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
    """Checks the argument `tags`: those that the macro computes cannot be given.

    Args:
        tags: The argument.

    Returns:
        A list of texts.
    """
    if type(tags) != "list" or [tag for tag in tags if type(tag) != "string"]:
        return [problem(
            "tags = {}".format(repr(tags)),
            "Tags are a list of texts.",
            "Use, for example, tags = [\"manual\"].",
        )]
    problems = [
        problem(
            "tags = {}: \"{}\" is set by dist_py_test.".format(repr(tags), tag),
            "It follows from backends, world_size and gpus_per_rank; by hand it could say something else.",
            "Drop it.",
        )
        for tag in tags
        if is_reserved_tag(tag)
    ]
    cpus = cpu_tags(tags)
    if len(cpus) > 1:
        problems.append(problem(
            "tags = {}: {}".format(repr(tags), " and ".join([repr(tag) for tag in cpus])),
            "Each says how many CPUs Bazel sets aside, and Bazel runs no test for which that is said twice.",
            "Keep one.",
        ))
    return problems + [
        problem(
            "tags = {}: \"{}\"".format(repr(tags), tag),
            "It says how many CPUs Bazel sets aside, and Bazel runs no test whose number it cannot read.",
            "Write cpu:<n> with a whole number from 1, or resources:cpu:<n> with a number such as 0.5.",
        )
        for tag in cpus
        if not _is_cpu_tag(tag)
    ]

def _is_cpu_tag(tag):
    number = tag.split(":")[-1]
    if tag.startswith("cpu:"):
        # As Bazel, which wants it without a sign and without zeros before it.
        return number.isdigit() and str(int(number)) == number and 1 <= int(number) and int(number) <= _MAX_CPUS
    return number.replace(".", "", 1).isdigit()

def exec_properties_problems(exec_properties):
    """Checks the argument `exec_properties`: only properties of the test action are right.

    Args:
        exec_properties: The argument.

    Returns:
        A list of texts.
    """
    if type(exec_properties) != "dict":
        return [problem(
            "exec_properties = {}".format(shown(exec_properties)),
            "It is a dict of properties for remote executors; a select() could hide one that is not the test's alone.",
            "Use, for example, exec_properties = {\"test.Pool\": \"large\"}.",
        )]
    problems = []
    for name, value in exec_properties.items():
        subject = "exec_properties: {} = {}".format(repr(name), repr(value))
        if name == _TEST_GROUP:
            problems.append(problem(
                subject,
                "\"{}\" says whose property it is, and the name of the property is missing.".format(_TEST_GROUP),
                "Write it behind the dot, as in \"{}Pool\".".format(_TEST_GROUP),
            ))
        elif type(name) != "string" or not name.startswith(_TEST_GROUP):
            problems.append(problem(
                subject,
                "Without \"{}\" it is a property of every action of the target, and builds wait for GPU workers.".format(_TEST_GROUP),
                "Write \"{}{}\".".format(_TEST_GROUP, name),
            ))
    return problems

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
