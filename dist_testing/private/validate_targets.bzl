"""Checks arguments that the macro changes before Bazel sees them: lists, tags, properties.

Every function returns a list of error texts (see problems.bzl). Bazel itself checks sizes, timeouts, numbers of shards and
of CPUs, and the types of the elements of lists.
"""

load("@dist_testing_wheels//:locks.bzl", "LOCKS")
load("//dist_testing/private:problems.bzl", "by_backend", "choice_problems", "problem", "shown")
load("//dist_testing/private:tags.bzl", "is_reserved_tag")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# The execution group of the action that runs a test. Without it a property applies to every action of the target.
_TEST_GROUP = "test."

# Attributes of py_test that the macro sets.
_MACRO_ATTRIBUTES = {
    "legacy_create_init": "An `__init__.py` that is in no source tree may hide the library; tests do without.",
    "main": "The library's own main runs the cases in srcs; for a script that every rank runs, use program.",
    "main_module": "The library's own main runs the cases; put them in srcs.",
    "srcs_version": "It has had no meaning since Python 2.",
}

def lists_problems(arguments):
    """Checks arguments that the macro adds to."""
    return [
        problem(
            "{} = {}".format(name, repr(value)),
            "It is a list, or a select() of lists.",
            "Put the labels or strings in brackets.",
        )
        for name, value in arguments.items()
        if type(value) not in ("list", "select")
    ]

def tags_problems(tags):
    """Checks the argument `tags`: a user cannot set the tags that the macro computes."""
    if type(tags) != "list" or [tag for tag in tags if type(tag) != "string"]:
        return [problem(
            "tags = {}".format(shown(tags)),
            "It is a list of strings; the macro adds tags of its own, and one CPU per rank if no tag asks for CPUs.",
            "Use, for example, tags = [\"manual\"].",
        )]
    return [
        problem(
            "tags = {}: \"{}\" is set by dist_py_test.".format(repr(tags), tag),
            "It follows from backends, world_size and gpus_per_rank; set by hand it could contradict them.",
            "Drop it.",
        )
        for tag in tags
        if is_reserved_tag(tag)
    ]

# Of the library's own add-ons.
_ADD_ON_ARGUMENTS = {
    "gpus": "gpus_per_rank, ranks_per_gpu, gpu_archs",
    "nodes": "nodes",
    "programs": "program, expected_exits",
}

def packages_problems(argument, value, backends):
    """Checks the argument `lock` or `torch`.

    Args:
        argument: Name of the argument.
        value: The argument: None, a name or a label, or a dict of them by backend.
        backends: Names of the target's backends.

    Returns:
        A list of error texts.
    """
    values, problems = by_backend(argument, value, backends)
    kinds = ["string"] if argument == "lock" else ["string", "Label"]
    if argument == "lock":
        # A hub without a lock of the name keeps its default, so a wrong name would have no effect.
        names = {name: one for name, one, _ in values if one and type(one) == "string"}
        for name, one in names.items():
            problems += choice_problems(name, one, LOCKS, "It is the name of a lock that a MODULE.bazel declares for a hub (docs/wheels.md).")
    return problems + [
        problem(
            "{} = {}".format(name, shown(one)),
            "It chooses the packages of the test: the name of a lock." if argument == "lock" else "It is the label of torch.",
            "Write, for example, {}.".format("lock = \"cuda\"" if argument == "lock" else "torch = \"@pypi//torch\""),
        )
        for name, one, _ in values
        if one != None and (type(one) not in kinds or not one)
    ]

def exec_properties_problems(exec_properties):
    """Checks the argument `exec_properties`: each property must be one of the test action alone.

    Args:
        exec_properties: The argument.

    Returns:
        A list of error texts.
    """
    if type(exec_properties) == "select":
        # Checked when the target is analysed (select_check.bzl).
        return []
    if type(exec_properties) != "dict":
        return [problem(
            "exec_properties = {}".format(shown(exec_properties)),
            "It is a dict of properties for remote executors, or a select() of dicts.",
            "Use, for example, exec_properties = {\"test.Pool\": \"large\"}.",
        )]
    return [
        problem(
            "exec_properties: {} = {}".format(repr(name), repr(value)),
            "Without \"{}\" it is a property of every action of the target, and builds wait for GPU workers.".format(_TEST_GROUP),
            "Write \"{}{}\".".format(_TEST_GROUP, "Pool" if name == _TEST_GROUP else name),
        )
        for name, value in exec_properties.items()
        if type(name) != "string" or not name.startswith(_TEST_GROUP) or name == _TEST_GROUP
    ]

def settings_problems(settings):
    """Checks the argument `settings`."""
    if type(settings) != "dict" or [name for name in settings if type(name) != "string"]:
        return [problem(
            "settings = {}".format(shown(settings)),
            "It is a dict from the names of add-ons to what the tests ask of them.",
            "Use, for example, settings = {\"key_value\": 100}.",
        )]
    return [
        problem(
            "settings: {} = {}".format(repr(name), repr(settings[name])),
            "That add-on has arguments of its own: {}.".format(_ADD_ON_ARGUMENTS[name]),
            "Use these.",
        )
        for name in settings
        if name in _ADD_ON_ARGUMENTS
    ]

def attributes_problems(attributes):
    """Checks the names of the attributes that go to py_test unchanged."""
    return [
        problem(
            "{} = {}".format(name, repr(attributes[name])),
            _MACRO_ATTRIBUTES[name],
            "Drop it.",
        )
        for name in attributes
        if name in _MACRO_ATTRIBUTES
    ]
