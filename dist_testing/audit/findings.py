"""What an audit plants and finds, as it stands in the table, the JSON (`audit.schema.json`) and the page.

`judge` makes it: a pure function of what a run with a fault did, and of what the same case does without a fault.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dist_testing.audit.command import Left, Ran
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import CaseSeen
from dist_testing.report.words import clean

SCHEMA: Final = 1

# What each fault does to one rank.
FAULTS: Final[dict[str, str]] = {
    "raise": "raises AssertionError",
    "kill": "is killed by SIGKILL",
    "exit0": "calls os._exit(0)",
    "exit3": "calls os._exit(3)",
    "skip": "skips the test (unittest.SkipTest)",
    "return": "returns early",
    "hang": "hangs",
}

# Faults after which the whole process of the rank is gone.
ENDS_PROCESS: Final = frozenset({"kill", "exit0", "exit3"})

# When a fault comes: at the first collective call of the test itself, at the first one, after init_process_group.
MOMENTS: Final = ("own", "collective", "init")
# Each kind of hole, and what it means.
HOLES: Final[dict[str, str]] = {
    "green": "the fault did not fail the run",
    "slow": "the failure came too late, or the command did not end within the limit",
    "blamed_other": "the report names other ranks only",
    "left_behind": "the run left processes, ports or files behind",
    "ended_harness": "the failure of one rank ended the whole session, so that later cases would not run",
    "ran_nothing": "the case passed and started processes, and none of them became a rank",
}

# "rank 1", "[rank1]", "rank: 1", "local_rank: 1", "Rank=1"; "Process 1" and "Thread 1", as torch writes.
# `rank == 1` and `rank = 1` are source code and arguments, which pytest shows around a failure; they blame no rank.
_RANK = re.compile(
    r"(?:rank(?:\s?[:#]\s?|=|\s)?\[?|(?<![A-Za-z])(?:process|thread)\s(?:#|rank\s)?)(\d{1,5})(?![\dx]|\.\d|-bit)",
    re.IGNORECASE,
)
_RANKS = re.compile(r"ranks\s(\d{1,5}(?:(?:,\s?|\sand\s)\d{1,5})+)", re.IGNORECASE)


@dataclass(frozen=True)
class FaultResult:
    """One fault in one case."""

    fault: str  # its name; "none" for the run of the case without a fault
    planted: bool  # whether it came
    note: str = ""  # why it was not planted, or other things worth knowing
    rank: int = 0  # the rank that got it
    call: str = ""  # the call in which it came
    outcome: str = ""  # what the harness says about the case: "passed", "failed", "skipped", "" (no result)
    exit_status: int | None = None  # exit status of the command; None if the audit had to stop it
    noticed_s: float | None = None  # seconds from the fault until the harness reported a failure; None if it did not
    named: tuple[int, ...] = ()  # the ranks that the report names
    left: Left = field(default_factory=Left)  # what the run left behind, beyond what it leaves without a fault
    holes: tuple[str, ...] = ()  # keys of HOLES
    log: str = ""  # file with the output of the run


@dataclass
class CaseResult:
    """One case of the suite."""

    id: str
    outcome: str  # its outcome in the run of the suite as it is
    world_size: int  # ranks that it started; 0 without ranks
    why_not: str = ""  # why it was not audited; "" if it was
    holes: tuple[str, ...] = ()  # Holes that need no fault, such as "ran_nothing"
    seconds: float = 0.0  # how long the audit of the case took
    faults: list[FaultResult] = field(default_factory=list)


@dataclass
class Audit:
    """All that an audit has found."""

    command: list[str]
    exit_status: int | None  # its exit status as it is; None if it had to be stopped
    suite_s: float  # seconds of the suite as it is
    slow_s: float  # from how many seconds on a fault is noticed too late
    limit_s: float  # how long the audit waited after a fault
    total_s: float = 0.0  # seconds of the whole audit
    cases: list[CaseResult] = field(default_factory=list)  # the cases, in their order
    unseen: list[str] = field(default_factory=list)  # what the audit could not see, in sentences

    @property
    def audited(self) -> list[CaseResult]:
        """The cases that got faults."""
        return [case for case in self.cases if case.faults]

    @property
    def without_ranks(self) -> list[CaseResult]:
        """The cases that started no ranks."""
        return [case for case in self.cases if not case.world_size]

    @property
    def left_out(self) -> list[CaseResult]:
        """The cases that started ranks, and got no faults."""
        return [case for case in self.cases if case.world_size and case.why_not]

    @property
    def fault_count(self) -> int:
        """How many faults came."""
        return sum(fault.planted for case in self.cases for fault in case.faults)

    @property
    def hole_count(self) -> int:
        """How many holes were found."""
        return sum(len(case.holes) + sum(len(fault.holes) for fault in case.faults) for case in self.cases)

    def to_json(self) -> dict[str, Any]:
        """Return what `audit.schema.json` describes."""
        return {"schema": SCHEMA, **asdict(self), "hole_count": self.hole_count}


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
