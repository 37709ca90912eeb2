"""Isolations: the facts that the library asks for, instead of comparing names."""

from __future__ import annotations

import pytest

from dist_testing.core.ground.backends import backends
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.isolation import (
    FORK,
    POOL,
    SPAWN,
    Isolation,
    Reuse,
    check_isolation,
    default_isolation,
    isolation_named,
    isolation_names,
    register_isolation,
)
from tests.support.results import refusal


@pytest.mark.parametrize(
    ("isolation", "reuse", "can_debug", "has_exit_codes", "fresh", "forks"),
    [
        (FORK, Reuse.NOTHING, True, True, False, True),
        (SPAWN, Reuse.NOTHING, True, True, True, False),
        (POOL, Reuse.RANKS, True, True, False, False),
        # One that declares nothing but its launcher.
        (Isolation("mine", ForkServerLauncher), Reuse.NOTHING, True, True, False, True),
    ],
)
def test_what_each_isolation_can_do(
    isolation: Isolation, reuse: Reuse, can_debug: bool, has_exit_codes: bool, fresh: bool, forks: bool
) -> None:
    """If this fails, a debugger waits for a terminal that no rank has, or ranks are shared that must not be."""
    assert isolation.reuse is reuse
    assert (isolation.can_debug, isolation.has_exit_codes) == (can_debug, has_exit_codes)
    assert (isolation.fresh_interpreter, isolation.forks_each_case) == (fresh, forks)
    assert not isolation.in_process


def test_the_isolations_of_the_core_are_known_by_their_names() -> None:
    """A BUILD file, a marker and the command line name them; a lost name breaks every test that uses it."""
    assert isolation_names()[:3] == ("fork", "spawn", "pool")
    assert [isolation_named(name) for name in isolation_names()[:3]] == [FORK, SPAWN, POOL]


@pytest.mark.parametrize("name", ["spwan", "Fork", "", "srun"])
def test_an_unknown_isolation_is_refused_with_the_known_ones(name: str) -> None:
    """A silent default would run the test in another way than its author asked for."""
    what, known, way_out = refusal(lambda: isolation_named(name)).splitlines()
    assert repr(name) in what
    assert ", ".join(isolation_names()) in known
    # Parts of the library, of which most bring none.
    assert "log_limits" not in known
    assert ("Did you mean 'spawn'" in way_out) is (name == "spwan")


@pytest.mark.parametrize("name", [name for name, declared in backends().items() if not declared.in_process])
def test_the_default_isolation_fits_its_backend(name: str) -> None:
    """Otherwise no test of this backend could run without naming an isolation."""
    backend = backends()[name]
    assert default_isolation(backend).fits(backend)
    check_isolation("a case", backend, default_isolation(backend))


def test_two_launchers_cannot_have_one_name() -> None:
    """The later one would silently take the place of the first for all tests that name it."""
    with pytest.raises(UsageError, match="'fork' is registered twice"):
        register_isolation(Isolation("fork", ForkServerLauncher, can_debug=False))
    assert register_isolation(FORK) is FORK
