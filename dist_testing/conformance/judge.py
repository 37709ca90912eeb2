"""Turns what the ranks observed, and what the engine found, into the status of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dist_testing.conformance.axes import members
from dist_testing.conformance.cell import Cell, Observation, Result, Seen, Status
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.error_text import ranks_by_text
from dist_testing.core.ground.outcomes import CRASHES, Cause, Kind, RankOutcome, exit_name

# A call that fails after this share of its limit has waited for something that never came.
_LATE_SHARE = 0.6


def judge(cell: Cell, result: CaseResult, observed: Mapping[int, Observation], limit_s: float) -> Result:
    """Return how a cell ended.

    `observed` has what ranks observed, without those that did not come to their end. `limit_s` is the limit of the
    group of the world, in seconds.
    """
    seconds = round(result.duration_s, 3)
    crashed = [outcome for outcome in result.outcomes if outcome.kind in CRASHES and not outcome.collateral]
    if crashed:
        return Result(cell, Status.CRASHES, "; ".join(map(_crash, crashed)), seconds)
    missing = [outcome for outcome in result.outcomes if outcome.rank not in observed]
    if missing:
        return _not_observed(cell, result, missing, seconds)
    every = [observed[rank] for rank in sorted(observed)]
    status, detail = _status(cell, every, limit_s)
    if status is not Status.WORKS:
        return Result(cell, status, detail, seconds, all(one.lives for one in every))
    if result.verdict.cause not in (Cause.NONE, Cause.INTERRUPTED):
        # Every rank saw the right thing, and the ranks did not survive the cell.
        return Result(cell, Status.WRONG, f"after the cell: {result.verdict.reason}", seconds, lives=False)
    return Result(cell, status, detail, seconds)


def _crash(outcome: RankOutcome) -> str:
    code = -(outcome.signal or 0) if outcome.kind is Kind.SIGNALLED else outcome.exit_code or 0
    return f"rank {outcome.rank}: {exit_name(code)}"


def _not_observed(cell: Cell, result: CaseResult, missing: Sequence[RankOutcome], seconds: float) -> Result:
    if result.verdict.cause is Cause.HANG or any(outcome.kind in (Kind.HUNG, Kind.STOPPED) for outcome in missing):
        return Result(cell, Status.HANGS, _hang(missing), seconds)
    ranks = ", ".join(str(outcome.rank) for outcome in missing)
    details = "; ".join(dict.fromkeys(outcome.summary for outcome in missing if outcome.summary))
    return Result(cell, Status.WRONG, f"rank(s) {ranks} did not come to the end of the cell: {details}", seconds)


def _hang(missing: Sequence[RankOutcome]) -> str:
    """Return who waits where, by the collective ledger."""
    places = ranks_by_text({outcome.rank: outcome.operation or outcome.phase for outcome in missing})
    return "; ".join(f"{_named(ranks)} in {place}" for place, ranks in places.items())


def _status(cell: Cell, every: Sequence[Observation], limit_s: float) -> tuple[Status, str]:
    wrong = [one for one in every if one.seen is Seen.WRONG]
    errors = [one for one in every if one.seen is Seen.ERROR]
    if wrong:
        return Status.WRONG, _told(wrong)
    if any(one.seen is Seen.ABSENT for one in every):
        return Status.NOT_RUN, every[0].text
    if not errors:
        return Status.WORKS, ""
    if late := [one for one in errors if one.seconds >= _LATE_SHARE * limit_s]:
        return Status.HANGS, f"until the limit of the group: {_told(late)}"
    told = _told(errors)
    # Ranks outside of the group have nothing to refuse.
    if {one.rank for one in errors} >= set(members(cell.group, cell.world_size)):
        return Status.REFUSES, told
    return Status.WRONG, f"only some ranks refuse: {told}"


def _told(some: Sequence[Observation]) -> str:
    """Return the texts of ranks, each text once."""
    (text, ranks), *others = ranks_by_text({one.rank: one.text for one in some}).items()
    more = f" ({len(others)} other text(s))" if others else ""
    return f"{_named(ranks)}: {text}{more}"


def _named(ranks: Iterable[int]) -> str:
    return f"rank(s) {', '.join(map(str, ranks))}"
