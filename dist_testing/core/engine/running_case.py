"""A case whose ranks have been started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dist_testing.core.engine.case_events import CaseEvents
from dist_testing.core.engine.hooks import Explainer
from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.ground.add_ons import AddOn, add_ons
from dist_testing.core.ground.case import Case


@dataclass(frozen=True, slots=True)
class RunningCase:
    """A case whose ranks have been asked for.

    Attributes:
        started_s: When the ranks were asked for, on the runner's monotonic clock.
        limit_s: Limit of the case, in seconds.
        add_ons: Those that take part.
    """

    case: Case
    world: RunningWorld
    started_s: float
    limit_s: float
    events: CaseEvents
    add_ons: Sequence[AddOn] = ()

    def explainers(self) -> Iterator[tuple[str, Explainer]]:
        """Yield the explainers, each with its name: those of the library, then the add-ons in their order."""
        watchers = self.world.supervisor.watchers
        held = dict(self.world.held)
        named = {add_on.name for add_on in add_ons()}
        yield from ((name, watcher.explain) for name, watcher in watchers.items() if name not in named)
        for add_on in add_ons():
            if add_on.name in held:
                yield add_on.name, held[add_on.name].explain
            if add_on.name in watchers:
                yield add_on.name, watchers[add_on.name].explain
            if add_on.explainer and add_on in self.add_ons:
                yield add_on.name, lambda result, add_on=add_on: add_on.load("explainer")(result)
