"""Declares the `--dist-*` options and the ini options of pytest, and reads the one that names the library's marker.

`option_values` reads the others.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.keepable import ENV_PREFIX, KEEPABLE
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE

# The ini option that names the marker, and the name without it.
MARKER_OPTION = "dist_marker"
_DEFAULT_NAME = "distributed"

# For texts of help. The table itself is in `launch.isolation`, which takes long to import.
ISOLATIONS = "fork, spawn, pool or thread"
# Follows the marker's name.
MARKER_HELP = (
    "(world_size=None, init=True, timeout=None, isolation=None, expected_exits=None, backends=None, "
    "features=None, strict_collectives=None): "
    "run the test on every rank of a world. "
    "world_size: a number, or a list of numbers of which each makes a case; default: the target's. "
    "init=False: the test makes its own groups. "
    "timeout: limit of the case in seconds. "
    f"isolation: how ranks are made: {ISOLATIONS}; "
    "the tests of a class or module share a worker pool. "
    "expected_exits: rank to the exit code that its process must end with, as {1: -9}; a negative one is a signal. "
    "backends: names of the backends that the test is for; with others it is deselected. "
    "features: features that a backend must have; with others the test is deselected. "
    "strict_collectives: whether the test fails if its ranks pass but make different collective calls. "
    "Add-ons have further arguments, by their names, such as nodes (simulated ones, that the ranks are spread over), "
    "faults, memory_limit (of all ranks together), and perturb (a seed that delays ranks)."
)
# The ini option that lists what a worker pool lets a test leave changed.
KEEPS_OPTION = "dist_pool_keeps"
EVENTS_OPTION = "--dist-events"
JOBS_OPTION = "--dist-jobs"
WATCH_OPTION = "--dist-watch"


def add_options(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addini(
        MARKER_OPTION,
        "name of the marker that runs a test on ranks (default: distributed); set it if the project has a marker of "
        "that name",
        default="",
    )
    parser.addini(
        KEEPS_OPTION,
        f"state that a test in a worker pool may leave changed for the next test: {', '.join(KEEPABLE)}, "
        f"{ENV_PREFIX}NAME (default: nothing)",
        type="args",
        default=[],
    )
    group = parser.getgroup("distributed", "distributed tests (dist_testing)")
    group.addoption("--dist-backend", metavar="NAME", help=f"backend of the worlds (default: {default_backend().name})")
    group.addoption(
        "--dist-world-size",
        metavar="N[,N...]",
        help=f"ranks of a test that sets no world_size; each number makes a case (default: {DEFAULT_WORLD_SIZE})",
    )
    group.addoption(
        "--dist-isolation",
        metavar="ISOLATION",
        help=f"how ranks are made: {ISOLATIONS} (default: the target's, else the backend's)",
    )
    group.addoption("--dist-timeout", metavar="SECONDS", help="limit of a case that sets none (default: the backend's)")
    group.addoption(
        "--dist-on-missing",
        metavar="skip|fail",
        help="for a test whose hardware the machine lacks (default: skip, or fail if it is promised)",
    )
    group.addoption(
        "--dist-strict-collectives",
        action="store_true",
        help="fail a test whose ranks pass but make different collective calls (default: compared if the test fails)",
    )
    group.addoption(
        "--dist-debug-rank",
        metavar="RANK",
        help="give this rank the terminal, for breakpoint() and --pdb; no limit applies",
    )
    group.addoption(
        JOBS_OPTION,
        metavar="N|auto",
        help="worlds that run side by side; auto: as many as the CPUs, GPUs and memory allow (default: 1)",
    )
    group.addoption(
        WATCH_OPTION,
        action="store_true",
        help="run tests again after each save, in forks of a process with torch; typed commands choose tests",
    )
    group.addoption(
        EVENTS_OPTION,
        metavar="FILE",
        help='write what happens in the run, with times, as JSON lines; ".gz" at the end compresses',
    )
    # An add-on that cannot be loaded must not end a session without distributed tests; others report it.
    with contextlib.suppress(DistTestingError, OSError):
        for add_on in add_ons():
            for option, text in add_on.options.items():
                group.addoption(option, metavar="VALUE", help=text)


def arguments_of_part(config: pytest.Config) -> tuple[str, ...]:
    """Return the command line for an interpreter that takes part in the session."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    return (
        *(argument for argument in arguments if argument != WATCH_OPTION),
        # A worker of pytest-xdist gets the arguments of its controller; it must not start workers.
        *(("-n", "0") if hasattr(config.option, "numprocesses") else ()),
    )


def has_options(config: pytest.Config) -> bool:
    """Return whether the command line has an option of the library."""
    # An option that is not given is None, or False if it takes no value.
    return any(value not in (None, False) for name, value in vars(config.option).items() if name.startswith("dist_"))


def marker_name(config: pytest.Config | Any) -> str:
    """Return the name of the library's marker: the value of the ini option `dist_marker`, by default `distributed`."""
    name: str = config.getini(MARKER_OPTION) or _DEFAULT_NAME
    if not name.isidentifier() or name.startswith("_"):
        raise UsageError(
            f"{MARKER_OPTION} = {name}: this cannot be the name of a marker.\n"
            "The ini option names the marker that runs a test on ranks, and Python code writes it as an attribute.\n"
            f"Write {MARKER_OPTION} = ranks, for example, or leave it out; the marker is then {_DEFAULT_NAME}."
        )
    return name


def has_mark(item: pytest.Item | Any) -> bool:
    """Return whether a test function or an item has a marker of this name, the library's or the project's own."""
    return item.get_closest_marker(marker_name(item.config)) is not None
