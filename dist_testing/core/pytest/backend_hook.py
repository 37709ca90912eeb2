"""Defines the hook that declares backends under plain pytest, for a repository or an installed plug-in."""

from __future__ import annotations

import os

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.errors import UsageError

_Declaration = str | os.PathLike[str] | Backend


@pytest.hookspec
def pytest_dist_backends() -> _Declaration | list[_Declaration]:  # type: ignore[empty-body]
    """Declare backends for the distributed tests of this run.

    A conftest.py or the pytest plugin of an installed package implements it. pytest asks only the conftest.py files
    that it loads before it collects: those in the folders of the command line's arguments, and in the folders above.
    Under Bazel the spec of the target replaces the hook.

    Returns:
        The path of a .bzl file that calls `declare_backend`, a `core.ground.backends.Backend`, or a list of these.
    """


def declared_backends(config: pytest.Config) -> list[tuple[Backend, str]]:
    """Return the backends that the hook declares, each with the place of its declaration."""
    found: list[tuple[Backend, str]] = []
    for result in config.hook.pytest_dist_backends():
        for declaration in result if isinstance(result, list | tuple) else [result]:
            if isinstance(declaration, Backend):
                found.append((declaration, f"the hook pytest_dist_backends ({declaration.torch_backend})"))
            elif isinstance(declaration, str | os.PathLike):
                path = os.fspath(declaration)
                read = add_on_named("backend_files", f"The hook pytest_dist_backends with {path}").load("read")
                found += [(backend, path) for backend in read(path)]
            else:
                raise UsageError(
                    f"The hook pytest_dist_backends has returned {declaration!r}.\n"
                    "It returns the path of a .bzl file that declares a backend, a Backend, or a list of these.\n"
                    'Return [Path(__file__).parent / "backend.bzl"], for example.'
                )
    return found
