"""The delays of a case in the runner: what ranks get, what they tell, and the search for fewer delays."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from dist_testing.core.engine.hooks import CaseStart, HeldResource, ResourceWish, WorldResource, WorldWatcher
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import OutOfTimeError
from dist_testing.core.ground.outcomes import Status
from dist_testing.perturb.plan import DELAYS, NAME, VARIABLE, Delay, Plan, read_plan

# In a note; the command has all.
_SHOWN = 5
# To find the fewest delays.
_MOST_RUNS = 40
_PAIR = 2
_Run = Callable[[Case], CaseResult]


class PlanOfWorld(WorldResource):
    """Gives each world the plan of its first case. A case with another plan gets a new world."""

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Return the plan as a variable."""
        held = HeldResource()
        held.env = {VARIABLE: str(wish.case.settings[NAME])}
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
        if not _failed(result):
            return result
        only = tuple(sorted((delay.rank, delay.call) for delay in self._delays))
        plan = dataclasses.replace(result.case.settings[NAME], only=only)
        shown = [str(delay) for delay in self._delays[:_SHOWN]]
        if (more := len(self._delays) - _SHOWN) > 0:
            shown.append(f"{more} more")
        note = f"Delays of --dist-perturb={plan}: {'; '.join(shown) or 'none'}."
        return _noted(dataclasses.replace(result, facts={**result.facts, NAME: str(plan)}), note)


def search(result: CaseResult, run: _Run) -> CaseResult:
    """Run a case again with the next seeds, until it has failed or has run as often as its plan says.

    `result` is that of the first run. Return the last one; of a failure that depends on delays, one with as few of them
    as were found. If the time for further runs is over, what the earlier ones have shown counts.
    """
    plan: Plan = result.case.settings[NAME]
    seed = plan.seed
    try:
        while not _failed(result) and seed < plan.seed + plan.runs - 1:
            seed += 1
            result = run(_with(result.case, dataclasses.replace(plan, seed=seed)))
        return _shrunk(result, run) if _failed(result) and plan.only is None else result
    except OutOfTimeError:
        return result


def _shrunk(result: CaseResult, run: _Run) -> CaseResult:
    delays = _delays(result)
    if not delays:
        return result
    plan: Plan = result.case.settings[NAME]
    runs = 1
    if _failed(run(_with(result.case, dataclasses.replace(plan, only=())))):
        return _noted(result, "It fails without any delay, too.")
    is_fewer = True
    while is_fewer:
        is_fewer = False
        for part in itertools.islice(_parts(delays), _MOST_RUNS - runs):
            runs += 1
            again = run(_with(result.case, dataclasses.replace(plan, only=part)))
            if is_fewer := _failed(again):
                result, delays = again, _delays(again)
                break
    return _noted(result, f"It passes without a delay, and fails with these, found in {runs} more runs.")


def _parts(delays: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield parts of the delays: first the halves, then all but one."""
    if middle := len(delays) // 2:
        yield tuple(delays[:middle])
        yield tuple(delays[middle:])
    # Of two, these are the halves.
    if len(delays) > _PAIR:
        for place in range(len(delays)):
            yield (*delays[:place], *delays[place + 1 :])


def _delays(result: CaseResult) -> tuple[tuple[int, int], ...]:
    """The delays of a result that has failed; none if no rank has come so far that its watcher knows."""
    return read_plan(NAME, result.facts[NAME]).only or () if NAME in result.facts else ()


def _with(case: Case, plan: Plan) -> Case:
    return dataclasses.replace(case, settings={**case.settings, NAME: plan})


def _failed(result: CaseResult) -> bool:
    return result.verdict.status is Status.FAILED


def _noted(result: CaseResult, note: str) -> CaseResult:
    return dataclasses.replace(result, notes=(note, *result.notes))
