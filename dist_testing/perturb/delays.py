"""The delays of a case in the runner: what ranks get, and what they tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from dist_testing.core.engine.hooks import CaseStart, HeldResource, ResourceWish, WorldResource, WorldWatcher
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.perturb.plan import NAME, VARIABLE, plan_of

# In a note; the command has all.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Delay:
    """A rank has waited before a call."""

    rank: Annotated[int, range(MAX_WORLD_SIZE)]
    call: Annotated[int, range(1, 1 << 31)]  # number of the call among those of the rank in the case, from 1
    delay_ms: Annotated[int, range(1, 1 << 16)]  # how long, in milliseconds
    operation: str  # name of the function, such as "all_reduce"
    place: str  # file and line of the test; "" if they are not known

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"rank {self.rank} waited {self.delay_ms} ms before {self.operation}{place}"


DELAYS: Family[Delay] = Family("delay of a rank", 1, (Delay,))


class PlanOfWorld(WorldResource):
    """Gives each world the plan of its first case. A case with another plan gets a new world."""

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Return the plan as a variable."""
        held = HeldResource()
        held.env = {VARIABLE: str(plan_of(wish.case))}
        return held


class DelayWatch(WorldWatcher):
    """Notes the delays of a case, and tells them if it has failed."""

    def begin_case(self, start: CaseStart) -> None:
        """Forget the delays of the last case."""
        self._delays: list[Delay] = []

    def on_message(self, rank: int, payload: str) -> None:
        """Note a delay."""
        self._delays.append(DELAYS.from_wire(payload))

    def explain(self, result: CaseResult) -> CaseResult:
        """Tell the delays, and how to repeat them."""
        if result.verdict.status is not Status.FAILED:
            return result
        plan = dataclasses.replace(
            plan_of(result.case), only=tuple(sorted((delay.rank, delay.call) for delay in self._delays))
        )
        note = f"Delays of --dist-perturb={plan}: {in_words(self._delays) or 'none'}."
        return dataclasses.replace(result, facts={**result.facts, NAME: str(plan)}, notes=(note, *result.notes))


def in_words(delays: Iterable[Delay]) -> str:
    """Return such as "rank 1 waited 100 ms before all_reduce (test_x.py:9)"; "" for no delay."""
    texts = [str(delay) for delay in delays]
    more = f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
