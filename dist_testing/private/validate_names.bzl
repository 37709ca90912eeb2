"""What dist_py_test refuses of the names of targets and files.

Every function here returns a list of texts (see problems.bzl). An empty list means that there is nothing to say.
"""

load("//dist_testing/private:labels.bzl", "label_fault", "path_fault")
load("//dist_testing/private:problems.bzl", "problem", "shown")

# Stand for many targets on a command line, so that one of that name could not be asked for.
_WILDCARDS = ["*", "all", "all-targets"]

def name_problems(name):
    """Checks the argument `name`.

    Args:
        name: The argument.

    Returns:
        A list of texts.
    """
    if type(name) != "string" or not name:
        return [problem(
            "name = {}".format(repr(name)),
            "It is a target's name, and the first part of the names of the targets for each backend.",
            "Give a text that is not empty.",
        )]
    fault = path_fault(name)
    return [problem(
        "name = {}".format(repr(name)),
        "It is the first part of the names of targets, and Bazel takes none that has {}.".format(fault),
        "Use letters, digits and \"_\".",
    )] if fault else []

def wildcard_problems(name):
    """Checks that the argument `name`, already checked, can be asked for."""
    return [problem(
        "name = {}".format(repr(name)),
        "On a command line that stands for every target of the package, so nobody could ask for the suite of that name.",
        "Choose another name.",
    )] if name in _WILDCARDS else []

def collision_problems(names, find):
    """Checks that no name is taken that a macro is about to use.

    Args:
        names: Names of targets, each with what it is for, as a dict.
        find: Function that gives the kind of the package's target of a name, or None.

    Returns:
        A list of texts.
    """
    return [
        problem(
            ":{} is there already, a {}.".format(name, find(name)),
            "That name is needed for {}.".format(names[name]),
            "Rename one of the two.",
        )
        for name in names
        if find(name) != None
    ]

def kind_of_existing(name):
    """Returns the kind of the package's target of a name, or None: for collision_problems."""
    rule = native.existing_rule(name)
    return rule["kind"] if rule else None

def srcs_problems(srcs):
    """Checks the argument `srcs`.

    Args:
        srcs: The argument.

    Returns:
        A list of texts.
    """
    if type(srcs) != "list" or not srcs:
        return [problem(
            "srcs = {}".format(shown(srcs)),
            "A list of at least one Python file is needed: the cases come from these files and nowhere else.",
            "Name the test files. What differs by platform belongs in deps or data, which may be a select().",
        )]
    problems = []
    for source in srcs:
        fault = label_fault(source) if type(source) == "string" else None
        if type(source) not in ("string", "Label") or not str(source).endswith(".py"):
            problems.append(problem(
                "srcs = {}: {} is not a Python file.".format(repr(srcs), repr(source)),
                "Every file in srcs is searched for cases.",
                "Put data files in data and other targets in deps.",
            ))
        elif fault:
            problems.append(problem(
                "srcs = {}: {} is no label.".format(repr(srcs), repr(source)),
                "A file is named as its package has it, and no label has {}.".format(fault),
                "Write \"test_a.py\" for a file of this package, \"//other:test_a.py\" for one of another.",
            ))
    return problems

def timings_problems(timings):
    """Checks the argument `timings`: None, or the label of a file.

    Args:
        timings: The argument.

    Returns:
        A list of texts.
    """
    if timings == None:
        return []
    way_out = "Write, for example, timings = \"timings.json\", or drop it: then cases are dealt to shards in turn."
    if type(timings) not in ("string", "Label"):
        return [problem(
            "timings = {}".format(shown(timings)),
            "It is the label of the one file that says how long cases take.",
            way_out,
        )]
    fault = label_fault(timings) if type(timings) == "string" else None
    if not fault and ("(" in str(timings) or ")" in str(timings)):
        fault = "brackets: Bazel puts its path in the place of $(rlocationpath <label>), which a bracket ends"
    return [problem(
        "timings = {}".format(repr(timings)),
        "It is the label of the one file that says how long cases take, and may not have {}.".format(fault),
        way_out,
    )] if fault else []
