"""Makes the result of a case from its outcomes: the verdict, and the facts that a report needs to explain it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from dist_testing.case import CaseResult, RankWarning
from dist_testing.engine.gpu_checks import Aftermath, notes
from dist_testing.engine.hang_story import blame_by_ledger, mark_stuck
from dist_testing.engine.rank_record import RankRecord
from dist_testing.engine.running_case import RunningCase
from dist_testing.engine.stack_dumps import operation_in
from dist_testing.outcomes import Kind, RankOutcome, Status, blame_machine, verdict
from dist_testing.process.rank_messages import Warned
from dist_testing.spec import Spec

__all__ = ["judged", "with_operation"]


def judged(running: RunningCase, spec: Spec, outcomes: tuple[RankOutcome, ...], after: Aftermath) -> CaseResult:
    """Return the result of a case that is over.

    Args:
        running: The case, and its world, whose folder still exists.
        spec: What the target asks for.
        outcomes: One per rank, by rank.
        after: The state of the world's GPUs.
    """
    case, world = running.case, running.world
    supervisor = world.supervisor
    story = supervisor.hang
    outcomes = mark_stuck(outcomes, story)
    found = verdict(
        outcomes,
        world_size=case.world_size,
        promised=spec.promises(case.world_size),
        leaked=supervisor.leaked,
        gpu_memory=after.memory,
    )
    found = blame_by_ledger(found, outcomes, story)
    found = blame_machine(found, faults=after.faults, lost=after.lost_text)
    has_failed = found.status is Status.FAILED
    log_files: dict[int, Path] = {}
    text_files: dict[int, Path] = {}
    quoted: Sequence[int] = ()
    if has_failed:
        log_files = {rank: world.log_file(rank) for rank in range(case.world_size)}
        text_files = {rank: path for rank in log_files if (path := world.text_file(rank)).exists()}
        quoted = [found.culprit, *found.failing] if found.culprit is not None else list(log_files)
    gpus = world.gpus
    return CaseResult(
        case=case,
        verdict=found,
        outcomes=outcomes,
        started_s=running.started_s,
        duration_s=time.monotonic() - running.started_s,
        limit_s=running.limit_s,
        logs={rank: world.log_tail(rank) for rank in quoted},
        log_files=log_files,
        text_files=text_files,
        stacks=supervisor.stacks,
        leaked=tuple(supervisor.leaked),
        gpu_memory=tuple(after.memory),
        warnings=_warnings_of(supervisor.records),
        end_session=next((record.end_session for record in supervisor.records if record.end_session), ""),
        gpus=gpus.names if gpus is not None else "",
        gpu_wait_s=gpus.wait_s if gpus is not None and running.is_first else 0.0,
        notes=(*(story.lines if story is not None else ()), *notes(world, spec, after), *world.log_limits.notes())
        if has_failed
        else (),
    )


def with_operation(outcome: RankOutcome, stack: str) -> RankOutcome:
    """Return the outcome of a rank that could not report it, with the operation that its stack shows."""
    if outcome.kind in (Kind.HUNG, Kind.STOPPED):
        return dataclasses.replace(outcome, operation=operation_in(stack) or outcome.operation)
    return outcome


def _warnings_of(records: Sequence[RankRecord]) -> tuple[RankWarning, ...]:
    """Return the warnings of all ranks, each once, with its ranks."""
    ranks: dict[Warned, list[int]] = {}
    for record in records:
        for warning in record.warnings:
            ranks.setdefault(warning, []).append(record.rank)
    return tuple(
        RankWarning(warned.category, warned.text, warned.filename, warned.line_number, tuple(its_ranks))
        for warned, its_ranks in ranks.items()
    )
