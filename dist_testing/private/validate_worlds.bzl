"""What dist_py_test refuses of the arguments about ranks: backends, worlds, GPUs, launchers, machines.

Every function here returns a list of texts (see problems.bzl). An empty list means that there is nothing to say.
"""

load("//backends:declare.bzl", "ISOLATIONS")
load("//dist_testing/private:gpus.bzl", "MAX_GPUS", "gpus_of_world")
load("//dist_testing/private:labels.bzl", "user_label")
load("//dist_testing/private:problems.bzl", "by_backend", "choice_problems", "is_int", "problem")
load("//dist_testing/private:suggest.bzl", "suggestion")

# Ranks are processes of one machine; a larger number is a typing error.
MAX_WORLD_SIZE = 1024

# Only who has this repository as the main one can add to its backends.
_CAN_DECLARE = user_label(Label("//backends")).startswith("//")

def backends_problems(backends, known):
    """Checks the argument `backends` against the table of backends.

    Args:
        backends: The argument.
        known: The table: name -> declaration.

    Returns:
        A list of texts.
    """
    if type(backends) != "list" or not backends:
        return [problem(
            "backends = {}".format(repr(backends)),
            "A list of at least one backend's name is needed: there is one target per backend.",
            "Use, for example, backends = [\"gloo\"]. Known: {}.".format(", ".join(sorted(known))),
        )]
    problems = []
    for index, backend in enumerate(backends):
        if type(backend) != "string" or backend not in known:
            problems.append(problem(
                "backends = {}: {} is not a backend.{}".format(
                    repr(backends),
                    repr(backend),
                    suggestion(backend, known) if type(backend) == "string" else "",
                ),
                "The backends are declared in {}: {}.".format(
                    "//backends" if _CAN_DECLARE else "@dist_testing//backends",
                    ", ".join(sorted(known)),
                ),
                "Use one of these, or declare it there in a folder of its own." if _CAN_DECLARE else "Use one of these.",
            ))
        elif backend in backends[:index]:
            problems.append(problem(
                "backends = {}: \"{}\" is there twice.".format(repr(backends), backend),
                "There is one target per backend, so both would have the same name.",
                "Drop one.",
            ))
    return problems

def _one_world_size_problems(argument, value):
    sizes = value if type(value) == "list" else [value]
    if not sizes:
        return [problem(
            "{} = []".format(argument),
            "Without a world size no case would run.",
            "Give at least one number of ranks.",
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
        backends: The target's backends, already checked.

    Returns:
        A list of texts.
    """
    if type(world_size) != "dict":
        return _one_world_size_problems("world_size", world_size)
    values, problems = by_backend("world_size", world_size, backends)
    for backend in backends:
        if backend not in world_size:
            problems.append(problem(
                "world_size = {}: nothing for \"{}\".".format(repr(world_size), backend),
                "A dict has to say the number of ranks for each backend; there is no default.",
                "Add \"{}\": <ranks>.".format(backend),
            ))
    for argument, sizes, _backend in values:
        problems += _one_world_size_problems(argument, sizes)
    return problems

def gpus_per_rank_problems(gpus_per_rank, backends, known):
    """Checks the argument `gpus_per_rank`: None, an int, or a dict of int by backend.

    Args:
        gpus_per_rank: The argument.
        backends: The target's backends, already checked.
        known: The table: name -> declaration.

    Returns:
        A list of texts.
    """
    if gpus_per_rank == None:
        return []
    values, problems = by_backend("gpus_per_rank", gpus_per_rank, backends)
    for argument, value, backend in values:
        device = known[backend]["device"]
        if not is_int(value) or value < 0:
            problems.append(problem(
                "{} = {}".format(argument, repr(value)),
                "It is the number of GPUs that each rank owns alone: a whole number, 0 or more.",
                "Use a number or a dict by backend, or drop it for the backend's own default.",
            ))
        elif value and device == "cpu":
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "That backend works on CPU tensors, so {} GPU(s) per rank would be kept idle.".format(value),
                "Drop it, use a dict that names the GPU backends only, or use a GPU backend.",
            ))
        elif value == 0 and device != "cpu":
            problems.append(problem(
                "{} = 0 with backend \"{}\"".format(argument, backend),
                "That backend works on tensors of device \"{}\" and cannot do without.".format(device),
                "Drop it for the default of {}, or use a CPU backend.".format(known[backend]["gpus_per_rank"]),
            ))
    return problems

def ranks_per_gpu_problems(ranks_per_gpu, backends, known):
    """Checks the argument `ranks_per_gpu`: None, an int, or a dict of int by backend.

    Args:
        ranks_per_gpu: The argument.
        backends: The target's backends, already checked.
        known: The table: name -> declaration.

    Returns:
        A list of texts.
    """
    if ranks_per_gpu == None:
        return []
    values, problems = by_backend("ranks_per_gpu", ranks_per_gpu, backends)
    for argument, value, backend in values:
        if not is_int(value) or value < 1:
            problems.append(problem(
                "{} = {}".format(argument, repr(value)),
                "It is the number of ranks that share a GPU: a whole number, 1 or more.",
                "Use a number or a dict by backend, or drop it: then each rank has its own.",
            ))
        elif value > 1 and "shared_gpu" not in known[backend]["features"]:
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "Its ranks cannot share a GPU: NCCL refuses a device that two ranks name, and a CPU backend has none.",
                "Use a dict that names only {}.".format(", ".join([
                    name
                    for name in sorted(known)
                    if "shared_gpu" in known[name]["features"]
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
        A list of texts.
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
    return [problem(
        "backend \"{}\": world_size {} x gpus_per_rank {} = {} GPUs".format(backend, world_size, gpus_per_rank, total),
        "All ranks of a target are on one machine, and none has more than {} GPUs.".format(MAX_GPUS),
        "Lower world_size or gpus_per_rank for this backend; either may be a dict by backend.",
    )]

def isolation_problems(isolation, backends, known):
    """Checks the argument `isolation`: None, a launcher, or a dict of launchers by backend.

    Args:
        isolation: The argument.
        backends: The target's backends, already checked.
        known: The table: name -> declaration.

    Returns:
        A list of texts.
    """
    if isolation == None:
        return []
    if type(isolation) != "dict":
        problems = choice_problems("isolation", isolation, ISOLATIONS, "It says how the ranks of a case are made.")
        if problems:
            # Once, and not again for every backend.
            return problems
    values, problems = by_backend("isolation", isolation, backends)
    for argument, value, backend in values:
        possible = known[backend]["isolations"]
        wrong = choice_problems(argument, value, ISOLATIONS, "It says how the ranks of a case are made.")
        problems += wrong
        if wrong or value in possible:
            continue
        problems.append(problem(
            "{} = \"{}\" with backend \"{}\"".format(argument, value, backend),
            "The group of \"{}\" connects processes, and threads of one process cannot be its ranks.".format(backend) if value == "thread" else "The group of \"{}\" lives inside one process, so its ranks are threads.".format(backend),
            "For this backend use one of: {}; isolation may be a dict by backend, and what it leaves out has its default.".format(
                ", ".join(possible),
            ),
        ))
    return problems

def nodes_problems(nodes):
    """Checks the argument `nodes`.

    Args:
        nodes: The argument.

    Returns:
        A list of texts.
    """
    if is_int(nodes) and nodes == 1:
        return []
    if is_int(nodes) and nodes > 1:
        return [problem(
            "nodes = {}".format(nodes),
            "Ranks on more than one (simulated) machine are not there yet; all ranks of a target are on one.",
            "Drop it. What a node's failure does to its peers can be tested by ending its ranks.",
        )]
    return [problem(
        "nodes = {}".format(repr(nodes)),
        "It is the number of machines that the ranks are spread over: a whole number, and for now 1.",
        "Drop it.",
    )]
