"""The form of an error text: three lines that say what was observed, the likely cause, and the way out."""

load("//dist_testing/private:suggest.bzl", "suggestion")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def problem(observed, cause, way_out):
    """Builds an error text of three lines: the argument with its value, why it is wrong, and what the user can do."""
    return "{}\n{}\n{}".format(observed, cause, way_out)

def fail_on(subject, problems):
    """Fails if the list of error texts is not empty. The subject is a macro and its target."""
    if problems:
        fail("{}: {}".format(subject, "\nand ".join(problems)))

def shown(value):
    """Formats a value for an error text; of a select(), says nothing but that it is one."""
    return "select(...)" if type(value) == "select" else repr(value)

def is_int(value):
    """Says whether a value is a number. True and False are none."""
    return type(value) == "int"

def choice_problems(argument, value, choices, cause):
    """Checks that a value is one of a few words.

    Args:
        argument: Name of the argument.
        value: The value.
        choices: The words.
        cause: Meaning of the argument.

    Returns:
        A list of error texts.
    """
    if type(value) == "string" and value in choices:
        return []
    near = suggestion(value, choices) if type(value) == "string" else ""
    return [problem(
        "{} = {}{}".format(argument, repr(value), "." + near if near else ""),
        cause,
        "Use one of: {}.".format(", ".join(choices)) if choices else "None is declared; drop the argument.",
    )]

def by_backend(argument, value, backends):
    """Splits an argument that may be a dict by backend.

    Args:
        argument: Name of the argument.
        value: The value: a dict, one value for all backends, or None for the default.
        backends: Names of the target's backends.

    Returns:
        A list of (name for error texts, value, backend) for the backends that the argument names, and a list
        of error texts about keys that are no backend of the target.
    """
    if value == None:
        return [], []
    if type(value) != "dict":
        return [(argument, value, backend) for backend in backends], []
    problems = [
        problem(
            "{} = {}: the key {} is not in backends = {}.".format(argument, repr(value), repr(key), repr(backends)),
            "A dict has a value for each of the target's backends, so this one would have no effect.",
            "Drop the key, or add the backend.",
        )
        for key in value
        if key not in backends
    ]
    return [
        ("{}[\"{}\"]".format(argument, backend), value[backend], backend)
        for backend in backends
        if backend in value
    ], problems
