"""Distributed PyTorch tests: every rank accounted for, one verdict, nothing left behind.

Two front ends run on one engine: `@pytest.mark.distributed` with the `world` fixture, and `MultiProcessTestCase` for
unittest. `__all__` lists the public names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# A module has the same name: its later import would replace a function that is not loaded here.
from dist_testing.run_tests import run_tests as run_tests

if TYPE_CHECKING:
    from dist_testing.compat.names import *  # noqa: F403
    from dist_testing.public import *  # noqa: F403
    from dist_testing.public import __all__ as __all__


def _load(name: str) -> Any:
    """Load the public names at the first use of one.

    Every pytest session imports this package for the plugin, if the package is installed. The engine and the front ends
    take 0.2 s of CPU time to import, which a session without distributed tests must not pay.
    """
    if name != "__all__" and name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not `from dist_testing import public`, which asks this function first.
    public = importlib.import_module(f"{__name__}.public")
    return getattr(public, name)


def __dir__() -> list[str]:
    """Return the public names, too, although they are not loaded yet."""
    return sorted({*globals(), *_load("__all__")})


if not TYPE_CHECKING:
    # A type checker would take every wrong name for one that this function knows.
    __getattr__ = _load
