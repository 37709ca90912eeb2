"""A world of 64 ranks with a thousand phases each, of which one fails in the last case."""

from __future__ import annotations

from typing import Any

from dist_testing.core.ground.record import CaseRecord, Phase, RankRecord, Status
from dist_testing.report.model import RunRecord

RANKS = 64
CASES = 167
PHASES = ("start", "init", "setup", "call", "teardown", "destroy")
CULPRIT = 7


def large_run() -> RunRecord:
    """Return the run, without the time that writing its event stream takes."""
    cases = []
    for number in range(CASES):
        begin = number * 1.7
        is_bad = number == CASES - 1
        ranks = tuple(
            RankRecord(
                rank,
                ("raised" if rank == CULPRIT else "stopped") if is_bad else "passed",
                seen_s=0.7 + rank * 0.001,
                phases=tuple(
                    Phase(name, index * 0.2 + rank * 0.001234, index * 0.2 + 0.2 + rank * 0.001234)
                    for index, name in enumerate(PHASES)
                ),
            )
            for rank in range(RANKS)
        )
        victims = tuple(rank for rank in range(RANKS) if rank != CULPRIT)
        blame: dict[str, Any] = {"culprit": CULPRIT, "victims": victims} if is_bad else {}
        status: Status = "failed" if is_bad else "passed"
        cases.append(CaseRecord(f"t.case_{number}", status, ranks=ranks, began_at_s=begin, duration_s=1.6, **blame))
    return RunRecord("//a:a", wall_zero_s=1.7e9, cases=tuple(cases))
