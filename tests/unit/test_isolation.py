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


def test_the_isolations_of_the_core_are_known_by_their_names() -> None:
    """A BUILD file, a marker and the command line name them; a lost name breaks every test that uses it."""
    assert isolation_names()[:3] == ("fork", "spawn", "pool")
    assert [isolation_named(name) for name in isolation_names()[:3]] == [FORK, SPAWN, POOL]


@pytest.mark.parametrize(
    ("isolation", "reuse"),
    [(FORK, Reuse.NOTHING), (SPAWN, Reuse.NOTHING), (POOL, Reuse.RANKS)],
)
def test_what_outlives_a_case(isolation: Isolation, reuse: Reuse) -> None:
    """Cases that share ranks stay in one shard, and the leak checks run for them."""
    assert isolation.reuse is reuse


@pytest.mark.parametrize(
    ("isolation", "can_debug", "has_exit_codes", "fresh", "forks"),
    [
        (FORK, True, True, False, True),
        (SPAWN, True, True, True, False),
        (POOL, True, True, False, False),
    ],
)
def test_what_each_isolation_can_do(
    isolation: Isolation, can_debug: bool, has_exit_codes: bool, fresh: bool, forks: bool
) -> None:
    """If this fails, a debugger waits for a terminal that no rank has, or a test expects an exit that never comes."""
    assert (isolation.can_debug, isolation.has_exit_codes) == (can_debug, has_exit_codes)
    assert (isolation.fresh_interpreter, isolation.forks_each_case) == (fresh, forks)


def test_a_new_isolation_makes_processes_that_end_with_their_case() -> None:
    """If this fails, an isolation that declares nothing but its launcher shares ranks between cases."""
    isolation = Isolation("mine", ForkServerLauncher)
    assert (isolation.in_process, isolation.fresh_interpreter, isolation.reuse) == (False, False, Reuse.NOTHING)
    assert (isolation.can_debug, isolation.has_exit_codes, isolation.forks_each_case) == (True, True, True)


@pytest.mark.parametrize("name", ["forks", "Fork", "", "srun"])
def test_an_unknown_isolation_is_refused_with_the_known_ones(name: str) -> None:
    """A silent default would run the test in another way than its author asked for."""
    with pytest.raises(UsageError) as caught:
        isolation_named(name)
    what, known, way_out = str(caught.value).splitlines()
    assert repr(name) in what
    assert ", ".join(isolation_names()) in known
    assert way_out


def test_a_near_miss_names_the_isolation_that_was_meant() -> None:
    """The user sees the correction in the message."""
    with pytest.raises(UsageError, match="Did you mean 'spawn'"):
        isolation_named("spwan")


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
