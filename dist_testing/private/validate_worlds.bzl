"""Checks the arguments about ranks: worlds, GPUs, isolation, nodes.

Every function returns a list of error texts (see problems.bzl).
"""

load("//dist_testing/private:gpus.bzl", "MAX_GPUS", "gpus_of_world")
load("//dist_testing/private:problems.bzl", "by_backend", "choice_problems", "is_int", "problem")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# All ranks are on one machine; a larger number is a typing error.
MAX_WORLD_SIZE = 1024

# As in dist_testing/core/ground/layout.py.
_MAX_NODES = 64

# Name -> whether the ranks are threads of one process. An isolation fits a backend that says the same of its groups. The
# first that fits is the default.
_ISOLATIONS = {
    "fork": False,
    "spawn": False,
    "pool": False,
    "thread": True,
}

# Text about a backend's groups, by its fact `in_process`.
_GROUPS = {
    False: "connects processes, and threads of one process cannot be its ranks.",
    True: "lives inside one process, so its ranks are threads.",
}

def isolations_of(backend):
    """Lists the names of the isolations that fit a backend declaration, the default first."""
    return [name for name, in_process in _ISOLATIONS.items() if in_process == backend["in_process"]]

def _one_world_size_problems(argument, value):
    """Checks the world sizes of one backend, or of all: a number or a list of numbers."""
    sizes = value if type(value) == "list" else [value]
    if not sizes:
        return [problem(
            "{} = []".format(argument),
            "Without a world size no case would run.",
            "Use at least one number of ranks.",
        )]
    problems = []
    for index, size in enumerate(sizes):
        if not is_int(size) or size < 1 or size > MAX_WORLD_SIZE:
            problems.append(problem(
                "{} = {}{}".format(argument, repr(value), ": {} is none.".format(repr(size)) if type(value) == "list" else ""),
                "It is the number of ranks of a case: a whole number from 1 to {}.".format(MAX_WORLD_SIZE),
                "Use a number, a list of numbers (each case runs once per entry), or a dict of these by backend.",
            ))
        elif size in sizes[:index]:
            problems.append(problem(
                "{} = {}: {} is there twice.".format(argument, repr(sizes), size),
                "Each case runs once per entry, so it would run twice in the same world.",
                "Drop one.",
            ))
    return problems

def world_size_problems(world_size, backends):
    """Checks the argument `world_size`: an int, a list of int, or a dict of these by backend.

    Args:
        world_size: The argument.
        backends: Names of the target's backends.

    Returns:
        A list of error texts.
    """
    if type(world_size) != "dict":
        return _one_world_size_problems("world_size", world_size)
    values, problems = by_backend("world_size", world_size, backends)
    for backend in backends:
        if backend not in world_size:
            problems.append(problem(
                "world_size = {}: nothing for \"{}\".".format(repr(world_size), backend),
                "A dict needs the number of ranks of each backend; there is no default.",
                "Add \"{}\": <ranks>.".format(backend),
            ))
    for argument, sizes, _backend in values:
        problems += _one_world_size_problems(argument, sizes)
    return problems

def gpus_per_rank_problems(gpus_per_rank, backends, known):
    """Checks the argument `gpus_per_rank`: None, an int, or a dict of int by backend.

    Args:
        gpus_per_rank: The argument.
        backends: Names of the target's backends.
        known: All backends: name -> declaration.

    Returns:
        A list of error texts.
    """
    values, problems = by_backend("gpus_per_rank", gpus_per_rank, backends)
    for argument, value, backend in values:
        owned = known[backend]["gpus_per_rank"]
        if not is_int(value) or value < 0:
            problems.append(problem(
                "{} = {}".format(argument, repr(value)),
                "It is the number of GPUs that each rank owns alone: a whole number, 0 or more.",
                "Use a number or a dict by backend, or drop it for the backend's own default.",
            ))
        elif value and not owned:
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "Ranks of that backend own no GPU, so {} GPU(s) per rank would be kept idle.".format(value),
                "Drop it, use a dict that names the GPU backends only, or use a GPU backend.",
            ))
        elif owned and not value:
            problems.append(problem(
                "{} = 0 with backend \"{}\"".format(argument, backend),
                "Its tests use tensors of device \"{}\", so each rank needs a GPU.".format(known[backend]["device"]),
                "Drop it for the default of {}, or use a CPU backend.".format(owned),
            ))
    return problems

def ranks_per_gpu_problems(ranks_per_gpu, backends, known):
    """Checks the argument `ranks_per_gpu`: None, an int, or a dict of int by backend.

    Args:
        ranks_per_gpu: The argument.
        backends: Names of the target's backends.
        known: All backends: name -> declaration.

    Returns:
        A list of error texts.
    """
    values, problems = by_backend("ranks_per_gpu", ranks_per_gpu, backends)
    for argument, value, backend in values:
        if not is_int(value) or value < 1:
            problems.append(problem(
                "{} = {}".format(argument, repr(value)),
                "It is the number of ranks that share a GPU: a whole number, 1 or more.",
                "Use a number or a dict by backend, or drop it: then each rank has its own.",
            ))
        elif value > 1 and not known[backend]["shares_gpus"]:
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "Its ranks cannot share a GPU: its declaration does not say shares_gpus, or it is for the CPU.",
                "Use a dict that names only {}.".format(", ".join([
                    name
                    for name in sorted(known)
                    if known[name]["shares_gpus"]
                ])),
            ))
    return problems

def gpu_total_problems(backend, world_size, gpus_per_rank, ranks_per_gpu = 1):
    """Checks that one machine can have the GPUs of the largest world.

    Args:
        backend: Name of the backend.
        world_size: Ranks of the largest world.
        gpus_per_rank: GPUs of each.
        ranks_per_gpu: Ranks that share one.

    Returns:
        A list of error texts.
    """
    if ranks_per_gpu > 1 and gpus_per_rank > 1:
        return [problem(
            "backend \"{}\": ranks_per_gpu = {} and gpus_per_rank = {}".format(backend, ranks_per_gpu, gpus_per_rank),
            "A rank either shares a GPU or has several of its own.",
            "Drop one of the two for this backend; either may be a dict by backend.",
        )]
    total = gpus_of_world(world_size, gpus_per_rank, ranks_per_gpu)
    if total <= MAX_GPUS:
        return []
    needed, change = "x gpus_per_rank {}".format(gpus_per_rank), "gpus_per_rank"
    if ranks_per_gpu > 1:
        needed, change = "/ ranks_per_gpu {}".format(ranks_per_gpu), "raise ranks_per_gpu"
    return [problem(
        "backend \"{}\": world_size {} {} = {} GPUs".format(backend, world_size, needed, total),
        "All ranks of a target are on one machine, and none has more than {} GPUs.".format(MAX_GPUS),
        "Lower world_size or {} for this backend; either may be a dict by backend.".format(change),
    )]

def isolation_problems(isolation, backends, known):
    """Checks the argument `isolation`: None, a name, or a dict of names by backend.

    Args:
        isolation: The argument.
        backends: Names of the target's backends.
        known: All backends: name -> declaration.

    Returns:
        A list of error texts.
    """
    if isolation == None:
        return []
    if type(isolation) != "dict":
        problems = choice_problems("isolation", isolation, _ISOLATIONS, "It says how the ranks of a case are made.")
        if problems:
            # Once, and not again for every backend.
            return problems
    values, problems = by_backend("isolation", isolation, backends)
    for argument, value, backend in values:
        possible = isolations_of(known[backend])
        wrong = choice_problems(argument, value, _ISOLATIONS, "It says how the ranks of a case are made.")
        problems += wrong
        if wrong or value in possible:
            continue
        problems.append(problem(
            "{} = \"{}\" with backend \"{}\"".format(argument, value, backend),
            "A group of \"{}\" {}".format(backend, _GROUPS[known[backend]["in_process"]]),
            "For this backend use one of: {}; isolation may be a dict by backend, and a backend that it leaves out has its default.".format(
                ", ".join(possible),
            ),
        ))
    return problems

def nodes_problems(nodes, tests):
    """Checks the argument `nodes`.

    Args:
        nodes: The argument.
        tests: Struct of each target, with the fields `backend`, `gpus`, `isolation` and `world_sizes`.

    Returns:
        A list of error texts.
    """
    if not (is_int(nodes) and 1 <= nodes and nodes <= _MAX_NODES):
        return [problem(
            "nodes = {}".format(repr(nodes)),
            "It is the number of simulated nodes that the ranks are spread over: a whole number from 1 to {}.".format(_MAX_NODES),
            "Drop it, or set nodes = 2, for example.",
        )]
    problems = []
    for test in tests if nodes > 1 else []:
        what = "nodes = {} with backend \"{}\"".format(nodes, test.backend["name"])
        if _ISOLATIONS[test.isolation]:
            problems.append(problem(
                what,
                "Its ranks are threads of one process, and a process is on one node.",
                "Drop it, or write a dist_py_test of its own for backends whose ranks are processes.",
            ))
        if test.gpus:
            problems.append(problem(
                what,
                "Simulated nodes share the GPUs of the machine, and each would give its own ranks the same ones.",
                "Drop it, or write a dist_py_test of its own for backends without GPUs.",
            ))
        problems += [
            problem(
                "nodes = {} with world_size = {}".format(nodes, size),
                "Each node has equally many ranks, so the number of nodes must divide the number of ranks.",
                "Set world_size = {}, for example.".format((size + nodes - 1) // nodes * nodes),
            )
            for size in test.world_sizes
            if size % nodes
        ]
    return {text: None for text in problems}.keys()
