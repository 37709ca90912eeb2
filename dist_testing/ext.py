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

| part | where | what it is |
|---|---|---|
| `setting`, `options` | runner | functions that read what a test, or the command line, asks of the add-on |
| `pytest_plugin`, `flags`, `marks` | runner | a plugin of pytest, and what in the command line asks for it |
| `target`, `promised` | runner | functions: what a target asks of it; what the configuration promises |
| `check`, `missing` | runner | functions: is the case possible, and can this machine run it |
| `resource` | runner | `WorldResource`: something that each world needs for itself |
| `watcher` | runner | `WorldWatcher`: looks at a world while its ranks run, answers them, ends the case |
| `explainer` | runner | `Explainer`: a pure function from result to result |
| `rerun` | runner | a function that may run a case again, and returns the result that counts |
| `place` | fork server | `WorldPlace`: where the ranks live, such as simulated nodes |
| `pytest_plugin`, `ini` | runner | a function that makes a plug-in of pytest; options of the ini file |
| `idle_work` | fork server | `IdleWork`: what it does while it waits |
| `isolations` | runner | ways to make ranks, by the names that a user can choose: each an `Isolation` |
| `rank_service` | ranks | `RankService`: work at the begin and the end of each case |

Add-ons take part in the order of `AddOn.order`, then of their names. An exception from a part never changes a verdict
silently: it becomes an `AddOnError` that names the add-on, and the case or the run fails with it. Errors whose text is
written for the user (`UsageError`, `LaunchError` and so on) and skips pass as they are.

Rank front ends, backends and sinks of events are registered by calls: `register_front_end` (at the end of its module),
a declaration of the backend (`docs/backends.md`), and `event_stream().subscribe`. A repository without a package can
register an isolation in a conftest.py, by `register_isolation`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dist_testing.core.ground.add_ons import EXT_VERSION as EXT_VERSION
from dist_testing.core.ground.add_ons import GROUP as GROUP
from dist_testing.core.ground.add_ons import AddOn as AddOn
from dist_testing.core.ground.add_ons import always as always

if TYPE_CHECKING:
    from dist_testing.core.engine.hooks import CaseStart as CaseStart
    from dist_testing.core.engine.hooks import EndCase as EndCase
    from dist_testing.core.engine.hooks import Explainer as Explainer
    from dist_testing.core.engine.hooks import HeldResource as HeldResource
    from dist_testing.core.engine.hooks import ResourceWish as ResourceWish
    from dist_testing.core.engine.hooks import WatchedWorld as WatchedWorld
    from dist_testing.core.engine.hooks import WorldResource as WorldResource
    from dist_testing.core.engine.hooks import WorldWatcher as WorldWatcher
    from dist_testing.core.engine.needs import Lack as Lack
    from dist_testing.core.events.event import CaseRecorded as CaseRecorded
    from dist_testing.core.events.event import Event as Event
    from dist_testing.core.events.event import EventStream as EventStream
    from dist_testing.core.ground.backends import Backend as Backend
    from dist_testing.core.ground.case import Case as Case
    from dist_testing.core.ground.case import CaseBody as CaseBody
    from dist_testing.core.ground.case import CaseResult as CaseResult
    from dist_testing.core.ground.errors import AddOnError as AddOnError
    from dist_testing.core.ground.errors import LaunchError as LaunchError
    from dist_testing.core.ground.errors import StateLeakError as StateLeakError
    from dist_testing.core.ground.errors import UsageError as UsageError
    from dist_testing.core.ground.outcomes import Cause as Cause
    from dist_testing.core.ground.outcomes import Status as Status
    from dist_testing.core.ground.outcomes import Verdict as Verdict
    from dist_testing.core.ground.spec import Spec as Spec
    from dist_testing.core.launch.isolation import Isolation as Isolation
    from dist_testing.core.launch.isolation import register_isolation as register_isolation
    from dist_testing.core.launch.launcher import IdleWork as IdleWork
    from dist_testing.core.launch.launcher import Launcher as Launcher
    from dist_testing.core.launch.launcher import RunContext as RunContext
    from dist_testing.core.launch.launcher import WorldPlace as WorldPlace
    from dist_testing.core.process.launcher_messages import RankStart as RankStart
    from dist_testing.core.process.launcher_messages import WorldRequest as WorldRequest
    from dist_testing.core.rank.bootstrap import RankContext as RankContext
    from dist_testing.core.rank.bootstrap import RankFrontEnd as RankFrontEnd
    from dist_testing.core.rank.hooks import RankService as RankService
    from dist_testing.core.rank.hooks import ServedRank as ServedRank
    from dist_testing.core.session.front_ends import register_front_end as register_front_end
    from dist_testing.core.session.session import event_stream as event_stream

# Where the names are. A rank must not import the engine for a name that it does not use.
_NAMES = {
    "core.ground.backends": "Backend",
    "core.ground.case": "Case CaseBody CaseResult",
    "core.engine.hooks": "CaseStart EndCase Explainer HeldResource ResourceWish WatchedWorld WorldResource "
    "WorldWatcher",
    "core.engine.needs": "Lack",
    "core.ground.errors": "AddOnError LaunchError StateLeakError UsageError",
    "core.events.event": "CaseRecorded Event EventStream",
    "core.launch.isolation": "Isolation register_isolation",
    "core.launch.launcher": "IdleWork Launcher RunContext WorldPlace",
    "core.ground.outcomes": "Cause Status Verdict",
    "core.process.launcher_messages": "RankStart WorldRequest",
    "core.rank.bootstrap": "RankContext RankFrontEnd",
    "core.rank.hooks": "RankService ServedRank",
    "core.session.front_ends": "register_front_end",
    "core.session.session": "event_stream",
    "core.ground.spec": "Spec",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(["EXT_VERSION", "GROUP", "AddOn", "always", *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dist_testing.{_HOMES[name]}"), name)
