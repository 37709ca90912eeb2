"""The isolation whose ranks are threads, as the add-on declares it."""

from __future__ import annotations

import re

import pytest

from dist_testing.core.ground.backends import backends
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import (
    FORK,
    POOL,
    Isolation,
    Reuse,
    check_isolation,
    default_isolation,
    isolation_named,
    isolation_names,
)
from dist_testing.core.pytest.options import ISOLATIONS
from dist_testing.threaded import THREAD


def test_users_can_name_it() -> None:
    """A BUILD file, a marker and the command line name it, before a module of the add-on is loaded."""
    assert "thread" in isolation_names()
    assert isolation_named("thread") is THREAD
    with pytest.raises(UsageError, match="Did you mean 'thread'"):
        isolation_named("threads")


def test_what_it_can_do() -> None:
    """If this fails, a debugger waits for a terminal that no rank has, or a test expects an exit that never comes."""
    assert THREAD.reuse is Reuse.PROCESS
    assert (THREAD.can_debug, THREAD.has_exit_codes) == (False, False)
    assert (THREAD.in_process, THREAD.fresh_interpreter, THREAD.forks_each_case) == (True, False, False)


def test_it_is_the_default_of_its_backends() -> None:
    """Otherwise no test of such a backend could run without naming an isolation."""
    of_threads = [declared for declared in backends().values() if declared.in_process]
    assert of_threads
    assert {default_isolation(backend) for backend in of_threads} == {THREAD}


@pytest.mark.parametrize(("isolation", "backend"), [(THREAD, "gloo"), (FORK, "threaded"), (POOL, "threaded")])
def test_ranks_that_the_backend_cannot_connect_are_refused(isolation: Isolation, backend: str) -> None:
    """Gloo ranks that are threads of one process would hang or corrupt each other's state."""
    with pytest.raises(UsageError) as caught:
        check_isolation("test_x", backends()[backend], isolation)
    text = str(caught.value)
    assert f'test_x: isolation "{isolation.name}" with backend "{backend}"' in text
    assert f'isolation "{default_isolation(backends()[backend]).name}"' in text
    of_threads = [name for name, declared in backends().items() if declared.in_process]
    assert (f"Use a backend of threads ({', '.join(of_threads)})" in text) == isolation.in_process


def test_the_help_names_every_isolation() -> None:
    """If this fails, a user does not learn of an isolation. The text is fixed, because the table loads late."""
    assert re.findall(r"\w+", ISOLATIONS.replace(" or ", " ")) == list(isolation_names())
