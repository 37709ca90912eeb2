"""How a refusal is worded: three lines, which say what was observed, the likely cause and the way out."""

load("//dist_testing/private:suggest.bzl", "suggestion")

def problem(observed, cause, way_out):
    """Returns one text of three lines."""
    return "{}\n{}\n{}".format(observed, cause, way_out)

def fail_on(subject, problems):
    """Fails if there are problems: of the subject, which is a macro and its target."""
    if problems:
        fail("{}: {}".format(subject, "\nand ".join(problems)))

def shown(value):
    """Returns how a value is written in a refusal: all of it, but not what a select() chooses from."""
    return "select(...)" if type(value) == "select" else repr(value)

def is_int(value):
    """Returns whether a value is a number; True is none, as type(True) is "bool"."""
    return type(value) == "int"

def choice_problems(argument, value, choices, cause):
    """Checks that a value is one of a few words.

    Args:
        argument: Name of the argument.
        value: What was given.
        choices: The words.
        cause: What the argument is for.

    Returns:
        A list of texts.
    """
    if type(value) == "string" and value in choices:
        return []
    near = suggestion(value, choices) if type(value) == "string" else ""
    return [problem(
        "{} = {}{}".format(argument, repr(value), "." + near if near else ""),
        cause,
        "Use one of: {}.".format(", ".join(choices)),
    )]

def by_backend(argument, value, backends):
    """Takes an argument apart that may be a dict by backend.

    Args:
        argument: Name of the argument.
        value: What was given.
        backends: The target's backends, already checked.

    Returns:
        A list of (name to show, value, backend) for the backends it says something for, and a list of texts
        about keys that are none of them.
    """
    if type(value) != "dict":
        return [(argument, value, backend) for backend in backends], []
    problems = [
        problem(
            "{} = {}: the key {} is not in backends = {}.".format(argument, repr(value), repr(key), repr(backends)),
            "A dict says the value for each of the target's backends, so this one would have no effect.",
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
