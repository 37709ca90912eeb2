"""What an audit has found, as it stands in the table, the JSON (`audit.schema.json`) and the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dist_testing.audit.left import Left

SCHEMA: Final = 1

# Each kind of hole, and what it means.
HOLES: Final[dict[str, str]] = {
    "green": "the fault did not fail the run",
    "slow": "the failure came too late, or the command did not end within the limit",
    "blamed_other": "the report names other ranks only",
    "left_behind": "the run left processes, ports or files behind",
    "ended_harness": "the failure of one rank ended the whole session, so that later cases would not run",
    "ran_nothing": "the case passed and started processes, and none of them became a rank",
}


@dataclass(frozen=True)
class FaultResult:
    """One fault in one case.

    Attributes:
        fault: Its name; "none" for the run of the case without a fault.
        planted: Whether it came.
        note: Why it was not planted, or other things worth knowing.
        rank: The rank that got it.
        call: The call in which it came.
        outcome: What the harness says about the case: "passed", "failed", "skipped", "" (no result).
        exit_status: Exit status of the command; None if the audit had to stop it.
        noticed_s: Seconds from the fault until the harness reported a failure; None if it did not.
        named: The ranks that the report names.
        left: What the run left behind, beyond what it leaves without a fault.
        holes: Keys of HOLES.
        log: File with the output of the run.
    """

    fault: str
    planted: bool
    note: str = ""
    rank: int = 0
    call: str = ""
    outcome: str = ""
    exit_status: int | None = None
    noticed_s: float | None = None
    named: tuple[int, ...] = ()
    left: Left = field(default_factory=Left)
    holes: tuple[str, ...] = ()
    log: str = ""


@dataclass
class CaseResult:
    """One case of the suite.

    Attributes:
        id: Its id.
        outcome: Its outcome in the run of the suite as it is.
        world_size: Ranks that it started; 0 without ranks.
        why_not: Why it was not audited; "" if it was.
        holes: Holes that need no fault, such as "ran_nothing".
        seconds: How long the audit of the case took.
        faults: Its faults.
    """

    id: str
    outcome: str
    world_size: int
    why_not: str = ""
    holes: tuple[str, ...] = ()
    seconds: float = 0.0
    faults: list[FaultResult] = field(default_factory=list)


@dataclass
class Audit:
    """All that an audit has found.

    Attributes:
        command: The test command.
        exit_status: Its exit status as it is; None if it had to be stopped.
        suite_s: Seconds of the suite as it is.
        total_s: Seconds of the whole audit.
        slow_s: From how many seconds on a fault is noticed too late.
        limit_s: How long the audit waited after a fault.
        cases: The cases, in their order.
        unseen: What the audit could not see, in sentences.
    """

    command: list[str]
    exit_status: int | None
    suite_s: float
    slow_s: float
    limit_s: float
    total_s: float = 0.0
    cases: list[CaseResult] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    @property
    def audited(self) -> list[CaseResult]:
        """The cases that got faults."""
        return [case for case in self.cases if case.faults]

    @property
    def without_ranks(self) -> list[CaseResult]:
        """The cases that started no ranks."""
        return [case for case in self.cases if not case.world_size]

    @property
    def hole_count(self) -> int:
        """How many holes were found."""
        return sum(len(case.holes) + sum(len(fault.holes) for fault in case.faults) for case in self.cases)

    def to_json(self) -> dict[str, Any]:
        """Return what `audit.schema.json` describes."""
        return {"schema": SCHEMA, **asdict(self), "hole_count": self.hole_count}
