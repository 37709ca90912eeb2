"""The macro backend_conformance_test."""

load("//dist_testing/private:dist_py_test.bzl", "dist_py_test")
load("//dist_testing/private:labels.bzl", "add_labels")
load("//dist_testing/private:problems.bzl", "fail_on", "problem", "shown")
load("//dist_testing/private:validate_environment.bzl", "env_problems")
load("//dist_testing/private:validate_targets.bzl", "lists_problems", "tags_problems")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

_CELLS = Label("//dist_testing:conformance/cells_test.py")

# The sizes of the kit's worlds.
_WORLD_SIZES = [1, 2, 3, 4, 5, 7]

# This macro sets them.
_VARIABLES = [
    "CONFORMANCE_CELLS",
    "CONFORMANCE_CELL_LIMIT",
    "CONFORMANCE_EXPECTATIONS",
    "CONFORMANCE_WORLD_SIZES",
]

def backend_conformance_test(
        *,
        name,
        backend,
        expectations = None,
        cells = None,
        cell_limit = None,
        max_world_size = None,
        shard_count = None,
        tags = None,
        data = None,
        env = None,
        **kwargs):
    """Declares a test of what torch.distributed promises on one backend (docs/conformance.md).

    Creates what a dist_py_test with this backend creates: `<name>_<backend>` and the manual suite `<name>`. Each cell of
    the kit is one case. The capability matrix is among the undeclared outputs: `matrix.json`, `matrix.md` and
    `matrix.html`, one set per shard.

    Args:
        name: Name of the suite, and first part of the target's name.
        backend: The backend: a name that dist_testing declares, or a value of declare_backend.
        expectations: Label of the expectation file of the backend. Default: no deviation is expected.
        cells: Patterns of the names of cells, such as "broadcast/*". Default: all cells.
        cell_limit: Limit of one cell in seconds, from 1. Default: 5.
        max_world_size: Largest world to run, 1 to 7; a backend whose ranks own GPUs needs as many. Default: 7.
        shard_count: As in dist_py_test.
        tags: As in dist_py_test. By default the target reserves two CPUs: cells compute little, and wait much.
        data: As in dist_py_test.
        env: As in dist_py_test, without the variables `CONFORMANCE_*`, which this macro sets.
        **kwargs: More arguments of dist_py_test, but not `srcs`, `backends`, `world_size` and `isolation`.
    """
    cells = [] if cells == None else cells
    data = [] if data == None else data
    env = {} if env == None else env
    tags = [] if tags == None else tags
    max_world_size = _WORLD_SIZES[-1] if max_world_size == None else max_world_size
    fail_on(
        "backend_conformance_test //{}:{}".format(native.package_name(), name),
        conformance_problems(
            expectations = expectations,
            cells = cells,
            cell_limit = cell_limit,
            max_world_size = max_world_size,
            data = data,
            env = env,
            tags = tags,
            more = kwargs,
        ),
    )
    sizes = [size for size in _WORLD_SIZES if size <= max_world_size]
    variables = {"CONFORMANCE_WORLD_SIZES": ",".join([str(size) for size in sizes])}
    if cells:
        variables["CONFORMANCE_CELLS"] = " ".join(cells)
    if cell_limit != None:
        variables["CONFORMANCE_CELL_LIMIT"] = str(cell_limit)
    if expectations:
        variables["CONFORMANCE_EXPECTATIONS"] = "$(rlocationpath {})".format(expectations)
    if not [tag for tag in tags if tag.startswith("cpu:") or tag.startswith("resources:cpu:")]:
        tags = tags + ["cpu:2"]
    dist_py_test(
        name = name,
        srcs = [_CELLS],
        backends = [backend],
        data = add_labels(data, [expectations] if expectations else []),
        env = env | variables,
        shard_count = shard_count,
        tags = tags,
        world_size = sizes,
        **kwargs
    )

def conformance_problems(*, expectations, cells, cell_limit, max_world_size, data, env, tags, more):
    """Checks the arguments that backend_conformance_test has beside those of dist_py_test, and those that it adds to.

    Args:
        expectations: The argument.
        cells: The argument; a list for None.
        cell_limit: The argument.
        max_world_size: The argument; 7 for None.
        data: The argument; a list for None.
        env: The argument; a dict for None.
        tags: The argument; a list for None.
        more: The other arguments.

    Returns:
        A list of error texts.
    """
    problems = lists_problems({"data": data}) + tags_problems(tags) + env_problems(env)
    if expectations != None and (type(expectations) not in ("string", "Label") or not expectations):
        problems.append(problem(
            "expectations = {}".format(shown(expectations)),
            "It is the label of one JSON file with the deviations of the backend.",
            "Write, for example, expectations = \"conformance.json\", or drop it.",
        ))
    if type(cells) != "list" or [cell for cell in cells if type(cell) != "string" or not cell or " " in cell]:
        problems.append(problem(
            "cells = {}".format(shown(cells)),
            "It is a list of patterns of names; no name has a space.",
            "Write, for example, cells = [\"broadcast/*\"], or drop it for all cells.",
        ))
    if cell_limit != None and (type(cell_limit) != "int" or cell_limit < 1):
        problems.append(problem(
            "cell_limit = {}".format(shown(cell_limit)),
            "It is a number of seconds from 1, and what a cell that hangs costs.",
            "Write, for example, cell_limit = 10, or drop it.",
        ))
    if type(max_world_size) != "int" or max_world_size < 1 or max_world_size > _WORLD_SIZES[-1]:
        problems.append(problem(
            "max_world_size = {}".format(shown(max_world_size)),
            "The kit has worlds of {} ranks.".format(", ".join([str(size) for size in _WORLD_SIZES])),
            "Write a number from 1 to {}.".format(_WORLD_SIZES[-1]),
        ))
    problems += [
        problem(
            "env: {}".format(variable),
            "The macro sets this variable from its own arguments.",
            "Use the argument: expectations, cells, cell_limit or max_world_size.",
        )
        for variable in _VARIABLES
        if type(env) == "dict" and variable in env
    ]
    problems += [
        problem(
            argument,
            "The kit brings its own cases and worlds, and chooses how their ranks are made.",
            "Drop the argument; cells and max_world_size choose what runs.",
        )
        for argument in ("srcs", "backends", "world_size", "isolation")
        if argument in more
    ]
    return problems
