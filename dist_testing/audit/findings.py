"""What an audit plants and finds, as it stands in the table, the JSON (`audit.schema.json`) and the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dist_testing.audit.command import Left

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
