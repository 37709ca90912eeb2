"""The delays of a case in the runner: what ranks get, and what they tell."""

from __future__ import annotations

import dataclasses

from dist_testing.core.engine.hooks import CaseStart, HeldResource, ResourceWish, WorldResource, WorldWatcher
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Status
from dist_testing.perturb.plan import DELAYS, NAME, VARIABLE, Delay, plan_of

# In a note; the command has all.
_SHOWN = 5


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
        shown = [str(delay) for delay in self._delays[:_SHOWN]]
        if (more := len(self._delays) - _SHOWN) > 0:
            shown.append(f"{more} more")
        note = f"Delays of --dist-perturb={plan}: {'; '.join(shown) or 'none'}."
        return dataclasses.replace(result, facts={**result.facts, NAME: str(plan)}, notes=(note, *result.notes))
