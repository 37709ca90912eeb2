"""What dist_py_test refuses, and what it says.

Every function here returns a list of texts, each with three lines: the observed value, the likely
cause, the way out. An empty list means that there is nothing to say.
"""

load("//dist_testing/private:gpus.bzl", "MAX_GPUS")
load("//dist_testing/private:suggest.bzl", "suggestion")
load("//dist_testing/private:tags.bzl", "is_reserved_tag")

# Ranks are processes of one machine; a larger number is a typing error.
MAX_WORLD_SIZE = 1024

# How ranks are made: the launchers of the Python side (`ISOLATIONS` in spec.py).
ISOLATIONS = ["fork", "spawn", "pool"]

SIZES = ["small", "medium", "large", "enormous"]
TIMEOUTS = ["short", "moderate", "long", "eternal"]

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
_RUNNER_PREFIXES = ["DIST_TESTING_SPEC", "TEST_", "XML_OUTPUT_FILE"]

# Attributes of py_test that the macro sets.
_MACRO_ATTRIBUTES = {
    "main": "The library's own main runs the cases; put them in srcs.",
    "main_module": "The library's own main runs the cases; put them in srcs.",
    "srcs_version": "It has had no meaning since Python 2.",
}

def _text(observed, cause, way_out):
    return "{}\n{}\n{}".format(observed, cause, way_out)

def _is_int(value):
    # In Starlark type(True) is "bool", so True is not taken for 1.
    return type(value) == "int"

def backends_problems(backends, known):
    """Checks the argument `backends` against the table of backends.

    Args:
        backends: The argument.
        known: The table: name -> declaration.

    Returns:
        A list of texts.
    """
    if type(backends) != "list" or not backends:
        return [_text(
            "backends = {}".format(repr(backends)),
            "A list of at least one backend's name is needed: there is one target per backend.",
            "Use, for example, backends = [\"gloo\"]. Known: {}.".format(", ".join(sorted(known))),
        )]
    problems = []
    for index, backend in enumerate(backends):
        if type(backend) != "string" or backend not in known:
            problems.append(_text(
                "backends = {}: {} is not a backend.{}".format(
                    repr(backends),
                    repr(backend),
                    suggestion(backend, known) if type(backend) == "string" else "",
                ),
                "The backends are declared in //backends: {}.".format(", ".join(sorted(known))),
                "Use one of these, or declare it there in a folder of its own.",
            ))
        elif backend in backends[:index]:
            problems.append(_text(
                "backends = {}: \"{}\" is there twice.".format(repr(backends), backend),
                "There is one target per backend, so both would have the same name.",
                "Drop one.",
            ))
    return problems

def _by_backend_problems(argument, value, backends):
    """Checks the keys of an argument that may be a dict by backend."""
    problems = []
    for key in value:
        if key not in backends:
            problems.append(_text(
                "{} = {}: the key {} is not in backends = {}.".format(argument, repr(value), repr(key), repr(backends)),
                "A dict says the value for each of the target's backends, so this one would have no effect.",
                "Drop the key, or add the backend.",
            ))
    return problems

def _one_world_size_problems(argument, sizes):
    if type(sizes) != "list":
        sizes = [sizes]
    if not sizes:
        return [_text(
            "{} = []".format(argument),
            "Without a world size no case would run.",
            "Give at least one number of ranks.",
        )]
    problems = []
    for index, size in enumerate(sizes):
        if not _is_int(size) or size < 1 or size > MAX_WORLD_SIZE:
            problems.append(_text(
                "{} = {}".format(argument, repr(size)),
                "It is the number of ranks of a case: a whole number from 1 to {}.".format(MAX_WORLD_SIZE),
                "Use a number, a list of numbers (each case runs once per entry), or a dict of these by backend.",
            ))
        elif size in sizes[:index]:
            problems.append(_text(
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
    problems = _by_backend_problems("world_size", world_size, backends)
    for backend in backends:
        if backend not in world_size:
            problems.append(_text(
                "world_size = {}: nothing for \"{}\".".format(repr(world_size), backend),
                "A dict has to say the number of ranks for each backend; there is no default.",
                "Add \"{}\": <ranks>.".format(backend),
            ))
        else:
            problems += _one_world_size_problems("world_size[\"{}\"]".format(backend), world_size[backend])
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
    problems = []
    if type(gpus_per_rank) == "dict":
        problems += _by_backend_problems("gpus_per_rank", gpus_per_rank, backends)
    for backend in backends:
        if type(gpus_per_rank) != "dict":
            argument, value = "gpus_per_rank", gpus_per_rank
        elif backend in gpus_per_rank:
            argument, value = "gpus_per_rank[\"{}\"]".format(backend), gpus_per_rank[backend]
        else:
            continue
        if not _is_int(value) or value < 0:
            problems.append(_text(
                "{} = {}".format(argument, repr(value)),
                "It is the number of GPUs that each rank owns alone: a whole number, 0 or more.",
                "Use a number or a dict by backend, or drop it for the backend's own default.",
            ))
        elif value and known[backend]["device"] == "cpu":
            problems.append(_text(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "That backend works on CPU tensors, so {} GPU(s) per rank would be kept idle.".format(value),
                "Drop it, use a dict that names the GPU backends only, or use a GPU backend.",
            ))
        elif value == 0 and known[backend]["device"] != "cpu":
            problems.append(_text(
                "{} = 0 with backend \"{}\"".format(argument, backend),
                "That backend works on tensors of device \"{}\" and cannot do without.".format(known[backend]["device"]),
                "Drop it for the default of {}, or use a CPU backend.".format(known[backend]["gpus_per_rank"]),
            ))
    return problems

def gpu_total_problems(backend, world_size, gpus_per_rank):
    """Checks that one machine can have the GPUs of the largest world.

    Args:
        backend: Name of the backend.
        world_size: Ranks of the largest world.
        gpus_per_rank: GPUs of each.

    Returns:
        A list of texts.
    """
    total = world_size * gpus_per_rank
    if total <= MAX_GPUS:
        return []
    return [_text(
        "backend \"{}\": world_size {} x gpus_per_rank {} = {} GPUs".format(backend, world_size, gpus_per_rank, total),
        "All ranks of a target are on one machine, and none has more than {} GPUs.".format(MAX_GPUS),
        "Lower world_size or gpus_per_rank for this backend; either may be a dict by backend.",
    )]

def srcs_problems(srcs):
    """Checks the argument `srcs`."""
    if type(srcs) != "list" or not srcs:
        return [_text(
            "srcs = {}".format(repr(srcs) if type(srcs) in ("list", "NoneType", "string") else type(srcs)),
            "A list of at least one Python file is needed: the cases come from these files and nowhere else.",
            "Name the test files. What differs by platform belongs in deps or data, which may be a select().",
        )]
    return [
        _text(
            "srcs = {}: {} is not a Python file.".format(repr(srcs), repr(source)),
            "Every file in srcs is searched for cases.",
            "Put data files in data and other targets in deps.",
        )
        for source in srcs
        if type(source) not in ("string", "Label") or not str(source).endswith(".py")
    ]

def _choice_problems(argument, value, choices, cause):
    if value in choices:
        return []
    near = suggestion(value, choices) if type(value) == "string" else ""
    return [_text(
        "{} = {}{}".format(argument, repr(value), "." + near if near else ""),
        cause,
        "Use one of: {}.".format(", ".join(choices)),
    )]

def isolation_problems(isolation):
    """Checks the argument `isolation`."""
    return _choice_problems("isolation", isolation, ISOLATIONS, "It says how the ranks of a case are made.")

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
        problems += _choice_problems("size", size, SIZES, "It is Bazel's size of a test.")
    if timeout != None:
        problems += _choice_problems("timeout", timeout, TIMEOUTS, "Bazel has four named timeouts; seconds are given with --test_timeout.")
    return problems

def tags_problems(tags):
    """Checks the argument `tags`: those that the macro computes cannot be given."""
    return [
        _text(
            "tags = {}: \"{}\" is set by dist_py_test.".format(repr(tags), tag),
            "It follows from backends, world_size and gpus_per_rank; by hand it could say something else.",
            "Drop it.",
        )
        for tag in tags
        if is_reserved_tag(tag)
    ]

def env_problems(env):
    """Checks the names in the argument `env`."""
    return [
        _text(
            "env: {} = {}".format(name, repr(env[name])),
            "That variable is set on every rank by dist_testing, or by Bazel for its test runner.",
            "Drop it. A test reads these values from its `world`.",
        )
        for name in env
        if name in _RANK_VARIABLES or any([name.startswith(prefix) for prefix in _RUNNER_PREFIXES])
    ]

def attributes_problems(attributes):
    """Checks the names of the attributes that are passed on to py_test."""
    return [
        _text(
            "{} = {}".format(name, repr(attributes[name])),
            _MACRO_ATTRIBUTES[name],
            "Drop it.",
        )
        for name in attributes
        if name in _MACRO_ATTRIBUTES
    ]
