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
    check_isolation,
    default_isolation,
    isolation_names,
)
from dist_testing.core.pytest.options import ISOLATIONS
from dist_testing.threaded import THREAD


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
