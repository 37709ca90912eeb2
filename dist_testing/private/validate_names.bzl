"""Checks the names and files that dist_py_test gets. Every function returns a list of error texts (see problems.bzl).

Bazel itself checks that names and labels are well formed.
"""

load("//dist_testing/private:problems.bzl", "problem", "shown")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# A name that stands for many targets on a command line.
_WILDCARDS = ["*", "all", "all-targets"]

def name_problems(name):
    """Checks the argument `name` of a macro."""
    if type(name) == "string" and name:
        return []
    return [problem(
        "name = {}".format(repr(name)),
        "It is a target's name, and the first part of the names of the targets for each backend.",
        "Use a string that is not empty.",
    )]

def wildcard_problems(name):
    """Checks that a command line can name the suite."""
    return [problem(
        "name = {}".format(repr(name)),
        "On a command line that means every target of the package, so it cannot name the suite.",
        "Choose another name.",
    )] if name in _WILDCARDS else []

def srcs_problems(srcs):
    """Checks the argument `srcs`.

    Args:
        srcs: The argument.

    Returns:
        A list of error texts.
    """
    if type(srcs) == "select":
        # Checked when the target is analysed (select_check.bzl).
        return []
    if type(srcs) != "list" or not srcs:
        return [problem(
            "srcs = {}".format(shown(srcs)),
            "A list of at least one Python file is needed, or a select() of such lists: the cases come from these files and " +
            "no others.",
            "Name the test files.",
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

def timings_problems(timings):
    """Checks the argument `timings`."""
    if timings == None or (type(timings) in ("string", "Label") and timings):
        return []
    return [problem(
        "timings = {}".format(shown(timings)),
        "It is the label of the one file that says how long cases take.",
        "Write, for example, timings = \"timings.json\", or drop it: shards then get the cases in turn.",
    )]
