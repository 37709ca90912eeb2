"""Declares the `--dist-*` options and the ini options of pytest. `option_values` reads them.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib

import pytest

from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.errors import DistTestingError
from dist_testing.core.ground.keepable import ENV_PREFIX, KEEPABLE
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE
from dist_testing.core.pytest.marker_name import ISOLATIONS, MARKER_OPTION

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
        help="fail a test whose ranks pass but make different collective calls (default: a warning)",
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
                group.addoption(option, metavar="N", help=text)


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
