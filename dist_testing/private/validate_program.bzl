"""Checks the arguments of a dist_py_test that runs a program. Every function returns a list of error texts (see problems.bzl)."""

load("//dist_testing/private:problems.bzl", "by_backend", "is_int", "problem", "shown")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Isolations whose ranks have a process of their own for one case.
PROGRAM_ISOLATIONS = ["fork", "spawn"]

# Argument -> why a program cannot have it.
_OF_TESTS = {
    "jobs": "A program is one case per world size, and each runs alone.",
    "ranks_per_gpu": "A program takes the GPU with the number LOCAL_RANK, so each rank needs its own.",
    "shard_count": "A program is one case per world size, so there is nothing to share.",
    "timings": "A program is one case per world size, so there is nothing to balance.",
}

def program_problems(program, srcs, isolation, backends, of_tests, resolve):
    """Checks the argument `program`, and the arguments that a program excludes.

    Args:
        program: The argument.
        srcs: The argument of that name.
        isolation: The argument of that name, already checked.
        backends: Names of the target's backends.
        of_tests: The arguments that only tests have: name -> value.
        resolve: Function that makes a label comparable: native.package_relative_label.

    Returns:
        A list of error texts.
    """
    if program == None:
        return []
    if type(program) not in ("string", "Label") or not str(program).endswith(".py"):
        return [problem(
            "program = {}".format(shown(program)),
            "It is the label of the one Python file that every rank runs.",
            "Write, for example, program = \"train.py\", or drop it: then srcs has tests.",
        )]
    problems = []
    if type(srcs) == "list" and resolve(program) not in [resolve(source) for source in srcs]:
        problems.append(problem(
            "program = {}: it is not in srcs = {}.".format(repr(program), repr(srcs)),
            "srcs has the program, and the modules that it imports from its own folder.",
            "Add it to srcs.",
        ))
    problems += [
        problem("{} = {} with a program".format(name, shown(value)), _OF_TESTS[name], "Drop it.")
        for name, value in of_tests.items()
        if value != None
    ]
    for argument, value, _backend in by_backend("isolation", isolation, backends)[0]:
        if value not in PROGRAM_ISOLATIONS:
            problems.append(problem(
                "{} = {} with a program".format(argument, repr(value)),
                "A program needs a process of its own, which ends with it.",
                "Use one of: {}.".format(", ".join(PROGRAM_ISOLATIONS)),
            ))
    return problems

def program_backend_problems(program, backends, known):
    """Checks that the backends of a program connect processes."""
    if program == None:
        return []
    return [
        problem(
            "backend \"{}\" with a program".format(backend),
            "Its groups live inside one process, and every rank of a program is a process.",
            "Drop the backend.",
        )
        for backend in backends
        if known[backend]["in_process"]
    ]

def expected_exits_problems(program, expected_exits, world_sizes):
    """Checks the argument `expected_exits`: None, or a dict from ranks to exit codes.

    Args:
        program: The argument of that name.
        expected_exits: The argument.
        world_sizes: All world sizes of the call.

    Returns:
        A list of error texts.
    """
    if expected_exits == None:
        return []
    subject = "expected_exits = {}".format(shown(expected_exits))
    if program == None:
        return [problem(
            subject + " without a program",
            "Each test says for itself how its ranks must end.",
            "Set expected_exits in the test's marker, or by the decorator dist_testing.expected_exits.",
        )]
    if type(expected_exits) != "dict" or [
        rank
        for rank, code in expected_exits.items()
        if not is_int(rank) or rank < 0 or not is_int(code) or code < -64 or code > 255
    ]:
        return [problem(
            subject,
            "It is a dict from ranks to exit codes, 0 to 255; a negative code is a signal.",
            "Write, for example, expected_exits = {1: -9}.",
        )]
    smallest = min(world_sizes)
    return [
        problem(
            "{}: there is no rank {} in a world of {}.".format(subject, rank, smallest),
            "Ranks are counted from 0.",
            "Name ranks that every world of the target has.",
        )
        for rank in expected_exits
        if rank >= smallest
    ]
