"""The extension interface: what an add-on implements, and how it registers. Version `EXT_VERSION`.

A package declares an `AddOn` and names it in an entry point of the group `dist_testing`:

    # pyproject.toml
    [project.entry-points.dist_testing]
    trimming = "trimming.declared:ADD_ON"

    # trimming/declared.py
    from dist_testing.ext import AddOn

    ADD_ON = AddOn(name="trimming", ext_version=1, idle_work="trimming.work:Trimming")

Each part is named as "module:attribute". It is imported when the first world needs it, in the process that needs it. So
the declaring module must import nothing but this one. The library's own add-ons use the same interface.

Add-ons take part in the order of `AddOn.order`, then of their names. An exception from a part never changes a verdict
silently: it becomes an `AddOnError` that names the add-on, and the case or the run fails with it. Errors whose text is
written for the user (`UsageError`, `LaunchError` and so on) and skips pass as they are.

Launchers, backends and sinks of events are registered by calls: `register_isolation` (at the end of the launcher's
module, or in a conftest.py), a declaration of the backend (`docs/backends.md`), and `EventStream.subscribe`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dist_testing.add_ons import EXT_VERSION, GROUP, AddOn, always

if TYPE_CHECKING:
    from dist_testing.backends import Backend
    from dist_testing.errors import AddOnError, LaunchError, UsageError
    from dist_testing.events.event import Event
    from dist_testing.events.stream import EventStream
    from dist_testing.launch.hooks import IdleWork
    from dist_testing.launch.isolation import Isolation, register_isolation
    from dist_testing.launch.launcher import Launcher, RunContext

# Where the names are. A rank must not import the engine for a name that it does not use.
_HOMES = {
    "AddOnError": "errors",
    "Backend": "backends",
    "Event": "events.event",
    "EventStream": "events.stream",
    "IdleWork": "launch.hooks",
    "Isolation": "launch.isolation",
    "LaunchError": "errors",
    "Launcher": "launch.launcher",
    "RunContext": "launch.launcher",
    "UsageError": "errors",
    "register_isolation": "launch.isolation",
}

__all__ = [
    "EXT_VERSION",
    "GROUP",
    "AddOn",
    "AddOnError",
    "Backend",
    "Event",
    "EventStream",
    "IdleWork",
    "Isolation",
    "LaunchError",
    "Launcher",
    "RunContext",
    "UsageError",
    "always",
    "register_isolation",
]


def __getattr__(name: str) -> Any:
    """Load a name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dist_testing.{_HOMES[name]}"), name)
