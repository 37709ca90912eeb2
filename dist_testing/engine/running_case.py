"""A case whose ranks have been started."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.case import Case
from dist_testing.engine.case_events import CaseEvents
from dist_testing.engine.running_world import RunningWorld


@dataclass(frozen=True, slots=True)
class RunningCase:
    """A case whose ranks have been asked for.

    Attributes:
        started_s: When the ranks were asked for, on the runner's monotonic clock.
        limit_s: Limit of the case, in seconds.
        is_first: Whether it is the first case on these ranks.
    """

    case: Case
    world: RunningWorld
    started_s: float
    limit_s: float
    is_first: bool
    events: CaseEvents
