"""Events about a case, its world and its ranks, which the engine emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dist_testing.core.events.event import CallTimes, Event, LedgerCall, LinkEnds, Phase


@dataclass(frozen=True, slots=True)
class CaseAsked(Event):
    """The engine is asked for a case.

    Attributes:
        case: Number of the case in this run, from 1. Later events refer to it. A second try has a second number.
        name: Name of the case, as the user writes it.
        world_size: Number of ranks.
        isolation: Name of the isolation.
        pool: Name of its worker pool; "" for ranks of its own.
        limit_s: Limit of the case, in seconds.
    """

    kind: ClassVar[str] = "case_asked"

    case: int
    name: str
    world_size: int
    isolation: str
    pool: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class LeaseWaitBegan(Event):
    """The case asks for `gpus` GPUs, and waits until it has them."""

    kind: ClassVar[str] = "lease_wait_began"

    case: int
    gpus: int


@dataclass(frozen=True, slots=True)
class LeaseWaitEnded(Event):
    """The case has its GPUs, or cannot have them.

    Attributes:
        case: Number of the case.
        gpus: The machine's numbers of its GPUs, such as "0, 1"; "" if it gets none.
    """

    kind: ClassVar[str] = "lease_wait_ended"

    case: int
    gpus: str


@dataclass(frozen=True, slots=True)
class WorldAsked(Event):
    """The launcher is asked for ranks. Without this event the case runs on existing ranks.

    Attributes:
        case: Number of the case.
        world: Number of the world in this run, from 1.
    """

    kind: ClassVar[str] = "world_asked"

    case: int
    world: int


@dataclass(frozen=True, slots=True)
class RankStarted(Event):
    """The process of a rank exists; threads of one process have the same `pid`."""

    kind: ClassVar[str] = "rank_started"

    case: int
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankReady(Event):
    """A rank is ready to begin its test. The limit of the case starts when all ranks are ready."""

    kind: ClassVar[str] = "rank_ready"

    case: int
    rank: int


@dataclass(frozen=True, slots=True)
class RankPhases(Event):
    """The phases of a rank in order, in one event at the end of the case, because a new phase does not wake the runner.

    Attributes:
        case: Number of the case.
        rank: Which rank.
        phases: Name, begin and end of each.
        lost: Number of missing earlier phases: a rank keeps only the last few.
    """

    kind: ClassVar[str] = "rank_phases"

    case: int
    rank: int
    phases: tuple[Phase, ...]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RankOutput(Event):
    """A rank has printed a line. The engine reads lines during the case, and only if a sink asks for this kind."""

    kind: ClassVar[str] = "rank_output"

    case: int
    rank: int
    line: str


@dataclass(frozen=True, slots=True)
class FaultHappened(Event):
    """A fault that a test or its plan has asked for has happened; `node_down` is two: links that are cut, and a kill.

    Attributes:
        case: Number of the case.
        action: "kill", "stop", "cont", "power off" (a kill of the ranks of a node), or "links".
        ranks: Ranks that it has ended or stopped, or that go on; empty for links.
        links: Links that have a new rule; empty for a fault of ranks.
        rule: The new rule in words: "cut", "whole", or such as "delay 20 ms"; "" for a fault of ranks.
        by: The rank that asked for it; None for the plan.
        asked_s: When it was asked for, on the monotonic clock. `at_s` is when it had happened.
    """

    kind: ClassVar[str] = "fault"

    case: int
    action: str
    ranks: tuple[int, ...]
    links: tuple[LinkEnds, ...]
    rule: str
    by: int | None
    asked_s: float


@dataclass(frozen=True, slots=True)
class RankWarned(Event):
    """A rank has issued a warning. Equal warnings of a rank in one case are one event.

    Attributes:
        case: Number of the case.
        rank: Which rank.
        category: Name of the warning's class.
        text: Its message.
        filename: File that it points to.
        line_number: Line in that file.
    """

    kind: ClassVar[str] = "rank_warned"

    case: int
    rank: int
    category: str
    text: str
    filename: str
    line_number: int


@dataclass(frozen=True, slots=True)
class RankLedgerRead(Event):
    """What the runner has last read of a rank's collective ledger, in a case whose ranks wait for each other.

    Attributes:
        case: Number of the case.
        rank: Which rank.
        state: What it does, in words: "ended the test", "waits in all_reduce #1 of the default group", or why it can go
            on.
        place: File and line of the test that its main thread is in; "" if that is not known.
        calls: Its last collective calls, in the order in which they began, and all that have not ended.
        times: When each of these calls began and ended; empty in files of older versions.
    """

    kind: ClassVar[str] = "rank_ledger"

    case: int
    rank: int
    state: str
    place: str
    calls: tuple[LedgerCall, ...]
    times: tuple[CallTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class RankOutcomeKnown(Event):
    """The outcome of a rank is known.

    Attributes:
        case: Number of the case.
        rank: Which rank.
        outcome: A value of `core.ground.outcomes.Kind`, such as "passed" or "signalled".
        seen_s: When the runner saw the first sign of it, on the monotonic clock.
        phase: Phase of the rank at that time.
        operation: Operation of torch.distributed that the rank was in; "" if none.
        description: The outcome in one line, for people.
        collateral: "lost" or "late" if the rank only lost a peer, or waited for one in vain; else "".
        exit_code: Exit code, for "exited".
        signal: Number of the signal, for "signalled".
    """

    kind: ClassVar[str] = "rank_outcome"

    case: int
    rank: int
    outcome: str
    seen_s: float
    phase: str
    operation: str
    description: str
    collateral: str
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class CaseJudged(Event):
    """The engine has judged the case.

    Attributes:
        case: Number of the case.
        status: "passed", "skipped" or "failed".
        cause: A value of `core.ground.outcomes.Cause`; "none" unless it failed.
        reason: The skip reason, or one sentence about the failure.
        culprit: The rank that failed first, if a rank is to blame.
        failing: Other ranks that failed by themselves, in the order of failing.
        victims: Ranks that failed only because another rank failed.
    """

    kind: ClassVar[str] = "verdict"

    case: int
    status: str
    cause: str
    reason: str
    culprit: int | None
    failing: tuple[int, ...]
    victims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CleanedUp(Event):
    """Nothing of the world is left; `leaked` are the command lines of processes that had to be killed."""

    kind: ClassVar[str] = "clean_up"

    case: int
    leaked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaseEnded(Event):
    """The last event of a case.

    Attributes:
        case: Number of the case.
        error: Why the case has no verdict, in one line; "" if it has one.
    """

    kind: ClassVar[str] = "case_ended"

    case: int
    error: str = ""


# In the order in which they usually come.
CASE_KINDS: tuple[type[Event], ...] = (
    CaseAsked,
    LeaseWaitBegan,
    LeaseWaitEnded,
    WorldAsked,
    RankStarted,
    RankReady,
    FaultHappened,
    RankPhases,
    RankOutput,
    RankWarned,
    RankLedgerRead,
    RankOutcomeKnown,
    CaseJudged,
    CleanedUp,
    CaseEnded,
)
