"""A case whose ranks have been started, and its result: the verdict, and the facts with which a report explains it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dist_testing.core.engine.case_events import CaseEvents
from dist_testing.core.engine.hooks import Explainer
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.engine.stack_dumps import operation_in
from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming
from dist_testing.core.ground.case import Case, CaseResult, Warned
from dist_testing.core.ground.error_text import format_error, summarise
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Status, Verdict, verdict
from dist_testing.core.ground.spec import Spec
from dist_testing.core.process.launcher_messages import text_name


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


def judged(running: RunningCase, spec: Spec, outcomes: tuple[RankOutcome, ...], left: Sequence[str]) -> CaseResult:
    """Return the result of a case that is over, from one outcome per rank. The folder of its world still exists.

    `left` is what the ranks have left behind in resources of the world.
    """
    case, world = running.case, running.world
    supervisor = world.supervisor
    found = verdict(outcomes, promised=bool(spec.promises(case.world_size)), leaked=supervisor.leaked, left=left)
    if supervisor.ended_by and found.cause in (Cause.NONE, Cause.INTERRUPTED):
        found = Verdict(Status.FAILED, Cause.FAILURE, supervisor.ended_by)
    result = CaseResult(
        case=case,
        verdict=found,
        outcomes=outcomes,
        started_s=running.started_s,
        # A world that has run beside another one may have been over for some time.
        duration_s=(supervisor.over_s or time.monotonic()) - running.started_s,
        limit_s=running.limit_s,
        stacks=supervisor.stacks,
        leaked=tuple(supervisor.leaked),
        left=tuple(left),
        warnings=_warnings_of(supervisor.records),
        end_session=next((record.end_session for record in supervisor.records if record.end_session), ""),
    )
    return _with_evidence(explained(result, _explainers(running)), world)


def _explainers(running: RunningCase) -> Iterator[tuple[str, Explainer]]:
    """Yield the explainers, each with its name: those of the library, then the add-ons in their order."""
    watchers = running.world.supervisor.watchers
    held = dict(running.world.held)
    named = {add_on.name for add_on in add_ons()}
    yield from ((name, watcher.explain) for name, watcher in watchers.items() if name not in named)
    for add_on in add_ons():
        if add_on.name in held:
            yield add_on.name, held[add_on.name].explain
        if add_on.name in watchers:
            yield add_on.name, watchers[add_on.name].explain
        if add_on.explainer and add_on in running.add_ons:
            yield add_on.name, lambda result, add_on=add_on: add_on.load("explainer")(result)


def explained(result: CaseResult, explainers: Iterable[tuple[str, Explainer]]) -> CaseResult:
    """Return the result after all explainers, each with the name of its add-on. One that raises fails the case."""
    for name, explain in explainers:
        try:
            with blaming(name, "its explainer"):
                result = explain(result)
        except Exception as error:
            before = result.verdict.reason or result.verdict.status.value
            found = Verdict(Status.FAILED, Cause.INFRASTRUCTURE, f"{summarise(error)}; before: {before}")
            result = dataclasses.replace(result, verdict=found, notes=(*result.notes, format_error(error)))
    return result


def _with_evidence(result: CaseResult, world: RunningWorld) -> CaseResult:
    """Return the result with the logs that a report quotes; without notes, which explain failures, if it has passed."""
    found = result.verdict
    if found.status is not Status.FAILED:
        return dataclasses.replace(result, notes=())
    ranks = range(result.case.world_size)
    return dataclasses.replace(
        result,
        logs={
            rank: world.log_tail(rank)
            for rank in ([found.culprit, *found.failing] if found.culprit is not None else ranks)
        },
        log_files={rank: world.supervisor.logs[rank] for rank in ranks},
        text_files={rank: path for rank in ranks if (path := world.supervisor.directory / text_name(rank)).exists()},
    )


def interrupted(running: RunningCase) -> CaseResult:
    """Kill the ranks of a case that the user stops, and return a result that says where each one was."""
    duration_s = time.monotonic() - running.started_s
    world = running.world
    world.supervisor.abort(ask_where=True)
    outcomes = tuple(record.outcome() for record in world.supervisor.records)
    return CaseResult(
        case=running.case,
        verdict=Verdict(
            Status.FAILED,
            Cause.INTERRUPTED,
            f"the run was stopped after {duration_s:.1f} s of this case",
            failing=tuple(outcome.rank for outcome in outcomes if outcome.text),
        ),
        outcomes=outcomes,
        started_s=running.started_s,
        duration_s=duration_s,
        limit_s=running.limit_s,
        logs={rank: world.log_tail(rank) for rank in range(running.case.world_size)},
        stacks=world.supervisor.stacks,
    )


def with_operation(outcome: RankOutcome, stack: str) -> RankOutcome:
    """Return the outcome of a rank that could not report it, with the operation that its stack shows."""
    if outcome.kind in (Kind.HUNG, Kind.STOPPED):
        return dataclasses.replace(outcome, operation=operation_in(stack) or outcome.operation)
    return outcome


def _warnings_of(records: Sequence[RankRecord]) -> dict[Warned, list[int]]:
    """Return the warnings of all ranks, each once, with its ranks."""
    ranks: dict[Warned, list[int]] = {}
    for record in records:
        for warning in record.warnings:
            ranks.setdefault(warning, []).append(record.rank)
    return ranks
