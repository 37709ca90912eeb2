"""The name of the library's marker, `@pytest.mark.distributed` if no ini option renames it, and its line of help.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

from typing import Any

import pytest

from dist_testing.core.ground.errors import UsageError

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
    "faults, and perturb (a seed that delays ranks)."
)


def marker_name(config: pytest.Config | Any) -> str:
    """Return the name of the library's marker: the value of the ini option `dist_marker`, by default `distributed`.

    Raises:
        UsageError: If the value cannot be the name of a marker.
    """
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
