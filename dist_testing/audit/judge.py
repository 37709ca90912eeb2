"""Judges one run with a fault: a pure function of what the run did and of what the same case does without a fault."""

from __future__ import annotations

import re

from dist_testing.audit.command import Ran
from dist_testing.audit.findings import ENDS_PROCESS, MOMENTS, FaultResult
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import CaseSeen
from dist_testing.report.words import clean

# "rank 1", "[rank1]", "rank: 1", "local_rank: 1", "Rank=1"; "Process 1" and "Thread 1", as torch writes.
# `rank == 1` and `rank = 1` are source code and arguments, which pytest shows around a failure; they blame no rank.
_RANK = re.compile(
    r"(?:rank(?:\s?[:#]\s?|=|\s)?\[?|(?<![A-Za-z])(?:process|thread)\s(?:#|rank\s)?)(\d{1,5})(?![\dx]|\.\d|-bit)",
    re.IGNORECASE,
)
_RANKS = re.compile(r"ranks\s(\d{1,5}(?:(?:,\s?|\sand\s)\d{1,5})+)", re.IGNORECASE)


def why_not_planted(fault: str, case: CaseSeen) -> str:
    """Return why a fault tells nothing about a case, which is seen here without a fault; "" if it does."""
    if fault == "return" and case.world_size < 2:
        return "in a world of one, an early return is a pass"
    if fault == "return" and not any(moments - {"init"} for moments in case.ranks.values()):
        return "the case makes no collective call that the audit sees, so no other rank waits for the one that returns"
    return ""


def moment_of(case: CaseSeen, rank: int) -> str:
    """Return the latest moment that a rank of the case reaches."""
    return next((moment for moment in MOMENTS if moment in case.ranks[rank]), "init")


def judge(plan: Plan, ran: Ran, clean: Ran, case_id: str, *, slow_s: float, limit_s: float) -> FaultResult:
    """Return what a run with a fault shows; `clean` is the run of the same case without one."""
    fault = plan.fault or "none"
    came = ran.seen.fault
    world_size = clean.seen.cases[case_id].world_size
    if came is None:
        why = "no function of this harness can be left early" if fault == "return" else "the rank did not come there"
        return FaultResult(fault, False, why, plan.rank, exit_status=ran.exit_status, log=str(ran.log))
    case = ran.seen.cases.get(case_id, CaseSeen(case_id))
    notes = [f"left {came.how}"] if came.how else []
    holes = []
    is_green = ran.exit_status == clean.exit_status
    # A skip of one rank may skip the case, if the harness says so.
    if is_green and not (fault == "skip" and case.outcome == "skipped"):
        holes.append("green")
        notes.append(_green_note(case))
    noticed_s = None
    if case.outcome == "failed" and case.ended_s is not None:
        noticed_s = round(max(0.0, case.ended_s - came.at_s), 3)
    elif ran.exit_status is not None and not is_green:
        noticed_s = round(max(0.0, ran.ended_s - came.at_s), 3)
    if ran.exit_status is None:
        holes.append("slow")
        notes.append(f"still running {limit_s:g} s after the fault")
    elif not is_green and noticed_s is not None and noticed_s > slow_s:
        holes.append("slow")
    # Without one report of the case, as where each rank is a pytest, the output is the report.
    named = ranks_named(case.text if case.text and case.tellers == 1 else ran.output, world_size)
    if came.hit_all and fault in ENDS_PROCESS:
        notes.append("the process had several ranks, which all ended")
    elif ran.exit_status is not None and not is_green and named and plan.rank not in named:
        holes.append("blamed_other")
    left = ran.left.beyond(clean.left)
    if left:
        holes.append("left_behind")
    if ran.exit_status is not None and not case.outcome and clean.seen.cases[case_id].outcome:
        if came.hit_harness:
            notes.append("the rank runs in the process of the harness, which ended with it")
        elif not is_green:
            holes.append("ended_harness")
    return FaultResult(
        fault,
        True,
        "; ".join(filter(None, notes)),
        plan.rank,
        came.call,
        case.outcome,
        ran.exit_status,
        noticed_s,
        named,
        left,
        tuple(holes),
        str(ran.log),
    )


def judge_clean(ran: Ran, case_id: str) -> FaultResult:
    """Return the result of the run without a fault. Processes that it leaves behind although it passes are a hole."""
    holes = ("left_behind",) if ran.left.processes else ()
    outcome = ran.seen.cases[case_id].outcome if case_id in ran.seen.cases else ""
    return FaultResult(
        "none", False, outcome=outcome, exit_status=ran.exit_status, left=ran.left, holes=holes, log=str(ran.log)
    )


def _green_note(case: CaseSeen) -> str:
    if case.outcome == "failed":
        return "the case failed, and the exit status of the command does not tell"
    if case.outcome == "skipped":
        return "the case counts as skipped"
    return "" if case.outcome else "the exit status tells of no failure, and the case has no result"


def ranks_named(text: str, world_size: int) -> tuple[int, ...]:
    """Return the ranks of a world that a report names, in order. Larger numbers are pids, ports and the like."""
    plain = clean(text)
    found = {int(match[1]) for match in _RANK.finditer(plain)}
    for match in _RANKS.finditer(plain):
        found.update(map(int, re.findall(r"\d+", match[1])))
    return tuple(sorted(rank for rank in found if rank < world_size))
