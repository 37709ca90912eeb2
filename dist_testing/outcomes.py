"""What happened to each rank, and what that adds up to.

`verdict()` is pure: it sees outcomes and nothing else, so that every combination can be tested.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from dist_testing.gpus.faults import is_hardware_fault
from dist_testing.skips import is_about_hardware

__all__ = [
    "CRASHES",
    "GOOD",
    "UNKNOWN_EXIT_CODE",
    "Cause",
    "Collateral",
    "Kind",
    "RankOutcome",
    "ReportDetails",
    "Status",
    "Verdict",
    "blame_machine",
    "exit_name",
    "verdict",
]


class Kind(enum.Enum):
    """The closed list of ways in which a rank's part in a case can end."""

    PASSED = "passed"
    SKIPPED = "skipped"
    RAISED = "raised"
    EXITED = "exited"  # left on its own without finishing: any code, also 0
    SIGNALLED = "signalled"
    HUNG = "hung"  # still running at the deadline
    STOPPED = "stopped"  # by the runner, because of what another rank did
    NEVER_STARTED = "never started"
    UNREADABLE = "report unreadable"


class Cause(enum.Enum):
    """Why a case did not pass."""

    NONE = "none"
    CRASH = "crash"
    FAILURE = "failure"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    DISAGREEMENT = "ranks disagree about a skip"
    LEAK = "children left behind"
    GPU_MEMORY = "GPU memory left behind"
    PROMISE = "promised hardware missing"
    INTERRUPTED = "interrupted"


class Status(enum.Enum):
    """What a case counts as."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


# Of a process that is not this one's child. No process ends with it: the kernel keeps eight bits.
UNKNOWN_EXIT_CODE = 256

# Ways to end that are no failure; and to die.
GOOD = frozenset({Kind.PASSED, Kind.SKIPPED})
CRASHES = frozenset({Kind.EXITED, Kind.SIGNALLED})
_INFRASTRUCTURE = frozenset({Kind.NEVER_STARTED, Kind.UNREADABLE})


# "lost": a peer has gone away. "late": a peer did not come in time. "": neither, the error is the rank's own.
Collateral = Literal["", "lost", "late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDetails:
    """The details of how a rank ended: the same in what a rank reports and in what the runner makes of it.

    Attributes:
        reason: For a skip, why.
        summary: One line, such as "ValueError: boom".
        text: Everything that is known: a traceback, a stack, an explanation.
        exit_code: For EXITED, the code; else None.
        collateral: "lost" or "late" if the error says no more than that a peer went away or did not come, so that it
            cannot be where the trouble began; else "".
        operation: The operation of torch.distributed that the error came out of, or that the rank was waiting in, such
            as "all_reduce"; "" if none.
        types: For RAISED, the names of the exception's class and its bases, separated by spaces.
    """

    reason: str = ""
    summary: str = ""
    text: str = ""
    exit_code: Annotated[int, range(256)] | None = None
    collateral: Collateral = ""
    operation: str = ""
    types: str = ""


@dataclass(frozen=True, slots=True)
class RankOutcome(ReportDetails):
    """How one rank ended. `ReportDetails` declares the fields that a rank can tell itself.

    Attributes:
        rank: Which rank.
        kind: What happened.
        at_s: When the runner saw the first sign of it, on its monotonic clock, in seconds.
        phase: What the rank was doing: "start", "init", "setup", "call", "teardown" or "destroy".
        signal: For SIGNALLED, the signal's number.
        further: What else failed on the rank: later sub-tests, the teardown. They have no `further` themselves.
        more_count: How many failures like those are left out of `further`.
    """

    rank: int
    kind: Kind
    at_s: float = 0.0
    phase: str = "call"
    signal: int | None = None
    further: tuple[RankOutcome, ...] = ()
    more_count: int = 0

    @classmethod
    def of(cls, rank: int, kind: Kind, at_s: float, phase: str, details: ReportDetails) -> RankOutcome:
        """Return the outcome of a rank that has told these details."""
        told = {field.name: getattr(details, field.name) for field in dataclasses.fields(ReportDetails)}
        return cls(rank, kind, at_s, phase, **told)

    def describe(self) -> str:
        """A predicate for "rank 3 ...", in one line."""
        match self.kind:
            case Kind.PASSED:
                return "passed"
            case Kind.SKIPPED:
                return f"skipped: {self.reason}"
            case Kind.RAISED if self.collateral:
                what = "lost a peer" if self.collateral == "lost" else "waited for a peer in vain"
                return f"{what} in {self.operation or self.phase} ({self.summary.partition(':')[0]})"
            case Kind.RAISED:
                return f"raised {self.summary} in {self.phase}"
            case Kind.EXITED | Kind.SIGNALLED if self.collateral:
                return f"went down in {self.phase} with the process that all ranks share"
            case Kind.EXITED if self.exit_code == UNKNOWN_EXIT_CODE:
                return f"ended in {self.phase}, and what started it knows how"
            case Kind.EXITED:
                ended = "" if self.exit_code else ", without finishing the test"
                return f"exited with code {self.exit_code} in {self.phase}{ended}"
            case Kind.SIGNALLED:
                others = f", {self.summary}" if self.summary else ""
                return f"was killed by {exit_name(-(self.signal or 0))} in {self.phase}{others}"
            case Kind.HUNG:
                return f"was still in {self.operation or self.phase} at the deadline"
            case Kind.STOPPED:
                return f"was in {self.operation or self.phase} and {self.summary or 'was stopped by the runner'}"
            case Kind.NEVER_STARTED:
                return f"never started: {self.summary}" if self.summary else "never started"
            case Kind.UNREADABLE:
                return f"sent a report that cannot be read: {self.summary}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a case's outcomes add up to.

    Attributes:
        status: What the case counts as.
        cause: Why it failed; `Cause.NONE` for a pass or a skip.
        reason: The skip reason, or one sentence about the failure.
        culprit: The rank that failed first, if a rank is to blame.
        failing: Other ranks that failed by themselves, first to last.
        victims: Ranks that only suffered from another one's failure.
    """

    status: Status
    cause: Cause = Cause.NONE
    reason: str = ""
    culprit: int | None = None
    failing: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()


def exit_name(exit_code: int) -> str:
    """How a process ended, for people: `SIGSEGV (11)` for -11, `exit code 3` for 3."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"{signal.Signals(-exit_code).name} ({-exit_code})"
    except ValueError:
        return f"signal {-exit_code}"


def verdict(
    outcomes: Sequence[RankOutcome],
    *,
    world_size: int,
    promised: bool = False,
    leaked: Sequence[str] = (),
    gpu_memory: Sequence[str] = (),
) -> Verdict:
    """Add the outcomes of one case up.

    Crash beats failure beats infrastructure beats hang beats skip disagreement beats leak beats skip beats pass. Among
    crashes and failures the culprit is the rank that the runner saw fail first; at the same moment, the crash.

    Args:
        outcomes: At most one per rank. A rank without one counts as never started.
        world_size: Ranks that the case asked for, at least 1.
        promised: The configuration says that the hardware is there, so a skip for want of it is a failure.
        leaked: Command lines of processes that the ranks left behind.
        gpu_memory: GPUs whose memory has not come back, a text each. Counts as something left behind.

    Raises:
        ValueError: If there are no ranks, or `outcomes` names one twice or one outside the world. That is a bug of the
            caller.
    """
    if world_size < 1:
        raise ValueError(f"world_size = {world_size}: a case without ranks has no verdict")
    by_rank = {outcome.rank: outcome for outcome in outcomes}
    if len(by_rank) != len(outcomes) or not by_rank.keys() <= set(range(world_size)):
        ranks = sorted(outcome.rank for outcome in outcomes)
        raise ValueError(f"outcomes of ranks {ranks} do not fit a world of {world_size}")
    every = [by_rank.get(rank, RankOutcome(rank, Kind.NEVER_STARTED)) for rank in range(world_size)]

    failed = [outcome for outcome in every if outcome.kind in CRASHES or outcome.kind is Kind.RAISED]
    unfit = [outcome for outcome in every if outcome.kind in _INFRASTRUCTURE]
    hung = [outcome for outcome in every if outcome.kind is Kind.HUNG]
    # A rank that lost a peer, beside one that never was a peer, only says so.
    if failed and not (unfit and all(outcome.collateral for outcome in failed)):
        return _failed(every, failed, Cause.FAILURE)
    if unfit:
        return _failed(every, unfit, Cause.INFRASTRUCTURE)
    if hung:
        waiting = [outcome for outcome in hung if outcome.operation]
        elsewhere = [outcome for outcome in hung if not outcome.operation]
        if waiting and elsewhere:
            return _never_arrived(waiting, elsewhere)
        return _failed(every, hung, Cause.HANG)

    skipped = [outcome for outcome in every if outcome.kind is Kind.SKIPPED]
    stopped = [outcome for outcome in every if outcome.kind is Kind.STOPPED]
    if skipped:
        return _skipped(every, skipped, promised=promised, left=_left(leaked, gpu_memory))
    if stopped:
        return Verdict(Status.FAILED, Cause.INTERRUPTED, "the run was stopped before the case ended")
    return _left(leaked, gpu_memory) or Verdict(Status.PASSED)


def blame_machine(found: Verdict, *, faults: Sequence[str], lost: str) -> Verdict:
    """The verdict on a case, given what the driver says of its GPUs.

    Args:
        found: What the outcomes add up to.
        faults: Errors of the hardware while the case ran; they excuse a failure, and nothing else.
        lost: Which GPU is gone; "" if none is. No pass and no failure on it is to be believed.
    """
    texts = [text for text in (lost, *faults, found.reason) if text]
    if found.cause is Cause.INTERRUPTED or not (lost or (faults and found.status is Status.FAILED)):
        return found
    return dataclasses.replace(found, status=Status.FAILED, cause=Cause.INFRASTRUCTURE, reason="; ".join(texts))


def _failed(every: Sequence[RankOutcome], broken: Sequence[RankOutcome], cause: Cause) -> Verdict:
    # A rank that only reports a lost peer did not start the trouble, even if its report came first: the kernel
    # closes a dying rank's sockets before anybody can see that it is dead.
    roots = [outcome for outcome in broken if not outcome.collateral]
    if not roots and any(outcome.collateral == "late" for outcome in broken):
        # Whoever was stuck elsewhere; else whoever had ended the test and did not know that others waited.
        for kinds in ((Kind.STOPPED, Kind.HUNG), (Kind.PASSED, Kind.SKIPPED)):
            if missing := [outcome for outcome in every if outcome.kind in kinds]:
                return _never_arrived(broken, missing)
    roots = roots or list(broken)
    ordered = sorted(roots, key=lambda outcome: (outcome.at_s, outcome.kind not in CRASHES, outcome.rank))
    if cause is Cause.HANG and len(ordered) > 1:
        # The deadline falls on all of them at once, so none of them was first.
        return Verdict(Status.FAILED, cause, _still_running(broken))
    culprit = ordered[0]
    if culprit.kind in CRASHES:
        cause = Cause.CRASH
    elif culprit.kind is Kind.RAISED and is_hardware_fault(culprit.summary):
        cause = Cause.INFRASTRUCTURE
    failing = tuple(outcome.rank for outcome in ordered[1:])
    blamed = {culprit.rank, *failing}
    return Verdict(
        Status.FAILED,
        cause,
        f"rank {culprit.rank} {culprit.describe()}",
        culprit.rank,
        failing,
        tuple(
            outcome.rank
            for outcome in every
            if outcome.rank not in blamed and (outcome.collateral or outcome.kind in (Kind.STOPPED, Kind.HUNG))
        ),
    )


def _still_running(hung: Sequence[RankOutcome]) -> str:
    by_place: dict[str, list[str]] = {}
    for outcome in hung:
        by_place.setdefault(outcome.operation or outcome.phase, []).append(str(outcome.rank))
    every = ", ".join(str(outcome.rank) for outcome in hung)
    places = "; ".join(f"{', '.join(ranks)} in {place}" for place, ranks in by_place.items())
    return f"ranks {every} were still running at the deadline ({places})"


def _never_arrived(waited: Sequence[RankOutcome], missing: Sequence[RankOutcome]) -> Verdict:
    """The group's own limit, which is below the case's, told the ranks that waited; the others were not waiting."""
    names = ", ".join(str(outcome.rank) for outcome in missing)
    return Verdict(
        Status.FAILED,
        Cause.HANG,
        f"rank{'s' if len(missing) > 1 else ''} {names} did not come to where the others waited",
        missing[0].rank if len(missing) == 1 and missing[0].kind is not Kind.PASSED else None,
        victims=tuple(outcome.rank for outcome in waited),
    )


def _skipped(
    every: Sequence[RankOutcome],
    skipped: Sequence[RankOutcome],
    *,
    promised: bool,
    left: Verdict | None,
) -> Verdict:
    reasons = {outcome.reason for outcome in skipped}
    if len(skipped) < len(every) or len(reasons) > 1:
        sides = "; ".join(f"rank {outcome.rank} {outcome.describe()}" for outcome in every)
        return Verdict(Status.FAILED, Cause.DISAGREEMENT, f"ranks disagree about a skip: {sides}")
    if left is not None:
        return left
    reason = skipped[0].reason
    if promised and is_about_hardware(reason):
        return Verdict(Status.FAILED, Cause.PROMISE, f"promised hardware missing: {reason}")
    return Verdict(Status.SKIPPED, reason=reason)


def _left(leaked: Sequence[str], gpu_memory: Sequence[str]) -> Verdict | None:
    for cause, things in ((Cause.LEAK, leaked), (Cause.GPU_MEMORY, gpu_memory)):
        if things:
            return Verdict(Status.FAILED, cause, f"{cause.value}: {'; '.join(things)}")
    return None
