"""The outcomes of the ranks of a case, and the verdict that follows from them.

`verdict()` is a pure function of the outcomes, so that every combination can be tested.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.core.ground.skips import is_about_hardware


class Kind(enum.Enum):
    """The ways in which a rank's part in a case can end; the list is complete."""

    PASSED = "passed"
    SKIPPED = "skipped"
    RAISED = "raised"
    EXITED = "exited"  # the process exited before the test was finished, with any code, also 0
    SIGNALLED = "signalled"
    HUNG = "hung"  # still running at the deadline
    STOPPED = "stopped"  # by the runner, because of another rank's outcome
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
    CALLS = "the ranks made different calls"
    RESOURCE = "resource left in use"
    PROMISE = "promised hardware missing"
    INTERRUPTED = "interrupted"


class Status(enum.Enum):
    """How a case counts in the results."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


# Exit code of a process that is not a child of this one, so that its code is not known. No process ends with this
# number, because the kernel keeps eight bits.
UNKNOWN_EXIT_CODE = 256

# The outcomes without failure, and those in which the process ended by itself.
GOOD = frozenset({Kind.PASSED, Kind.SKIPPED})
CRASHES = frozenset({Kind.EXITED, Kind.SIGNALLED})
# The end of a sentence: the error's text continues. An ellipsis stays.
_END = re.compile(r"(?<!\.)\.$")
_INFRASTRUCTURE = frozenset({Kind.NEVER_STARTED, Kind.UNREADABLE})


# "lost": a peer has gone away. "late": a peer did not come in time. "": neither, the error is the rank's own.
Collateral = Literal["", "lost", "late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDetails:
    """Details of how a rank ended. A rank report has them, and so has the outcome that the runner makes of it.

    Attributes:
        reason: For SKIPPED, the skip reason. For RAISED, why the test expects it by a mark that it has added; else "".
        summary: One line, such as "ValueError: boom".
        text: All details: a traceback, a stack, an explanation.
        exit_code: For EXITED, the exit code, or `UNKNOWN_EXIT_CODE`; else None.
        collateral: Set if the error is only the consequence of another rank: "lost" if a peer went away, "late" if a
            peer did not come; else "".
        operation: The operation of `torch.distributed` that raised the error, or in which the rank was waiting, such as
            "all_reduce"; "" if none.
        types: For RAISED, the names of the exception's class and its bases, separated by spaces.
        expected_by: For RAISED, the numbers of the expectations of the case that the exception meets, such as its xfail
            marks. Only the rank can tell: a class is more than its name, and it stays in its process.
        recorded: Names and values that the test has recorded as its properties so far.
    """

    reason: str = ""
    summary: str = ""
    text: str = ""
    exit_code: Annotated[int, range(256)] | None = None
    collateral: Collateral = ""
    operation: str = ""
    types: str = ""
    expected_by: tuple[int, ...] = ()
    recorded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RankOutcome(ReportDetails):
    """How one rank ended. `ReportDetails` declares the fields that a rank itself can report.

    Attributes:
        rank: The rank, from 0.
        kind: How its part in the case ended.
        at_s: When the runner saw the first sign of it, in seconds on the runner's monotonic clock.
        phase: The phase in which it ended: "start", "import", "init", "setup", "call", "teardown" or "destroy".
        signal: For SIGNALLED, the signal's number.
        further: Later failures on the rank: of sub-tests, of the teardown. They have no `further` themselves.
        more_count: Number of later failures that `further` leaves out.
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
        """Return one line that continues a sentence which begins with "rank 3"."""
        match self.kind:
            case Kind.PASSED:
                return "passed"
            case Kind.SKIPPED:
                return f"skipped: {self.reason}"
            case Kind.RAISED if self.collateral:
                what = "lost a peer" if self.collateral == "lost" else "timed out waiting for a peer"
                return f"{what} in {self.operation or self.phase} ({self.summary.partition(':')[0]})"
            case Kind.RAISED:
                return f"raised {_END.sub('', self.summary)} in {self.phase}"
            case Kind.EXITED | Kind.SIGNALLED if self.collateral:
                return f"went down in {self.phase} with the process that all ranks share"
            case Kind.EXITED if self.exit_code == UNKNOWN_EXIT_CODE and self.summary:
                return f"was lost in {self.phase}: {self.summary}"
            case Kind.EXITED if self.exit_code == UNKNOWN_EXIT_CODE:
                return f"ended in {self.phase}; its exit status is known only to its parent"
            case Kind.EXITED:
                ended = "" if self.exit_code else ", without finishing the test"
                return f"exited with code {self.exit_code} in {self.phase}{ended}"
            case Kind.SIGNALLED:
                others = f", {self.summary}" if self.summary else ""
                return f"was killed by {exit_name(-(self.signal or 0))} in {self.phase}{others}"
            case Kind.HUNG:
                return f"was still in {self.operation or self.phase} {self.summary or 'at the deadline'}"
            case Kind.STOPPED:
                return f"was in {self.operation or self.phase} and {self.summary or 'was stopped by the runner'}"
            case Kind.NEVER_STARTED:
                return f"never started: {self.summary}" if self.summary else "never started"
            case Kind.UNREADABLE:
                return f"sent a report that cannot be read: {self.summary}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a case.

    Attributes:
        status: How the case counts in the results.
        cause: Why it failed; `Cause.NONE` for a pass or a skip.
        reason: The skip reason, or one sentence about the failure; "" for a pass.
        culprit: The rank that failed first; None if no single rank is to blame.
        failing: Other ranks that failed by themselves, from first to last.
        victims: Ranks that failed, hung or were stopped only because of another rank's failure.
        is_proven: For a hang, whether it is proven that no rank could ever have gone on.
        suspects: Ranks of which one is to blame, as far as their calls show. For a hang, only without a culprit.
    """

    status: Status
    cause: Cause = Cause.NONE
    reason: str = ""
    culprit: int | None = None
    failing: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    is_proven: bool = False
    suspects: tuple[int, ...] = ()


# How a process can end, as in `subprocess`: by an exit code, or by a signal, as a negative number.
EXIT_CODES = range(1 - signal.NSIG, 256)


def are_exits(value: object) -> bool:
    """Return whether a value is a table of ranks, from 0, and of how their processes can end."""
    return isinstance(value, Mapping) and all(
        # To `isinstance`, a bool is an int.
        all(isinstance(number, int) and not isinstance(number, bool) for number in (rank, code))
        and rank >= 0
        and code in EXIT_CODES
        for rank, code in value.items()
    )


def exit_name(exit_code: int) -> str:
    """Return how a process ended, as text: `SIGSEGV (11)` for -11, `exit code 3` for 3."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"{signal.Signals(-exit_code).name} ({-exit_code})"
    except ValueError:
        return f"signal {-exit_code}"


def verdict(
    outcomes: Sequence[RankOutcome],
    *,
    promised: bool = False,
    leaked: Sequence[str] = (),
    left: Sequence[str] = (),
) -> Verdict:
    """Return the verdict that follows from the outcomes of one case, one for each of its ranks.

    The first of these that is found decides:

    1. Crashes and failures, together. The culprit is the rank that the runner saw fail first; at the same moment, a
       crash comes before a failure, and then the lowest rank. The cause is that of the culprit, so a crash after a
       failure does not change it. A collateral outcome is the culprit only if no rank failed by itself, and each rank
       told how it ended; if one of the collateral outcomes is then "late", the cause is a hang of the ranks that did
       not come.
    2. Infrastructure: ranks that never started, or whose report is unreadable. It comes before 1 if all crashes and
       failures are collateral.
    3. Ranks that hung.
    4. Ranks that disagree about a skip.
    5. Ranks that the runner stopped before the case ended.
    6. Processes that the ranks left behind, then what they left in resources of the world.
    7. A skip, which is a failure if it is about promised hardware.
    8. A pass.

    The outcomes may be in any order. `promised` says whether the configuration promises the hardware; `leaked` has the
    command lines of processes that the ranks left behind, and `left` texts of what they left in resources of add-ons.
    """
    assert outcomes, "every case has ranks"
    every = sorted(outcomes, key=lambda outcome: outcome.rank)
    failed = [outcome for outcome in every if outcome.kind in CRASHES or outcome.kind is Kind.RAISED]
    unfit = [outcome for outcome in every if outcome.kind in _INFRASTRUCTURE]
    hung = [outcome for outcome in every if outcome.kind is Kind.HUNG]
    # A rank that lost a peer is only a victim if that peer never started.
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
    if skipped and (len(skipped) < len(every) or len({outcome.reason for outcome in skipped}) > 1):
        sides = "; ".join(f"rank {outcome.rank} {outcome.describe()}" for outcome in every)
        return Verdict(Status.FAILED, Cause.DISAGREEMENT, f"ranks disagree about a skip: {sides}")
    if stopped:
        return Verdict(Status.FAILED, Cause.INTERRUPTED, "the run was stopped before the case ended")
    if (found := left_behind(leaked, left)) is not None:
        return found
    if not skipped:
        return Verdict(Status.PASSED)
    reason = skipped[0].reason
    if promised and is_about_hardware(reason):
        return Verdict(Status.FAILED, Cause.PROMISE, f"promised hardware missing: {reason}")
    return Verdict(Status.SKIPPED, reason=reason)


def _failed(every: Sequence[RankOutcome], broken: Sequence[RankOutcome], cause: Cause) -> Verdict:
    # A rank that only reports a lost peer is not the cause, even if its report came first: the kernel closes a dying
    # rank's sockets before other processes can see that it is dead.
    roots = [outcome for outcome in broken if not outcome.collateral]
    if not roots and any(outcome.collateral == "late" for outcome in broken):
        # The cause is the ranks that were stuck elsewhere, or else those that had ended the test while others waited.
        for kinds in ((Kind.STOPPED, Kind.HUNG), (Kind.PASSED, Kind.SKIPPED)):
            if missing := [outcome for outcome in every if outcome.kind in kinds]:
                return _never_arrived(broken, missing)
    stopped = [outcome for outcome in every if outcome.kind in (Kind.STOPPED, Kind.HUNG)]
    if not roots and stopped and all(outcome.kind is Kind.RAISED for outcome in broken):
        # One of these may have closed its connections, and not come to its report.
        lost, rest = (ranks_text(outcome.rank for outcome in ranks) for ranks in (broken, stopped))
        victims = tuple(outcome.rank for outcome in broken)
        return Verdict(Status.FAILED, cause, f"{lost} lost a peer, and {rest} did not report in time", victims=victims)
    roots = roots or list(broken)
    ordered = sorted(roots, key=lambda outcome: (outcome.at_s, outcome.kind not in CRASHES, outcome.rank))
    if cause is Cause.HANG and len(ordered) > 1:
        # The deadline falls on all of them at once, so none of them was first.
        return Verdict(Status.FAILED, cause, _still_running(broken))
    culprit = ordered[0]
    if culprit.kind in CRASHES:
        cause = Cause.CRASH
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
    by_place = ranks_by_text({outcome.rank: outcome.operation or outcome.phase for outcome in hung})
    places = "; ".join(f"{', '.join(map(str, ranks))} in {place}" for place, ranks in by_place.items())
    return f"{ranks_text(outcome.rank for outcome in hung)} were still running at the deadline ({places})"


def _never_arrived(waited: Sequence[RankOutcome], missing: Sequence[RankOutcome]) -> Verdict:
    """Return a hang of the ranks that did not come; the time limit of the group ended the waits of the others."""
    return Verdict(
        Status.FAILED,
        Cause.HANG,
        f"{ranks_text(outcome.rank for outcome in missing)} did not come to where the others waited",
        missing[0].rank if len(missing) == 1 and missing[0].kind is not Kind.PASSED else None,
        victims=tuple(outcome.rank for outcome in waited),
    )


def left_behind(leaked: Sequence[str], left: Sequence[str]) -> Verdict | None:
    """Return the verdict on what a case left behind, as processes and in resources; None if it left nothing."""
    if leaked:
        return Verdict(Status.FAILED, Cause.LEAK, f"{Cause.LEAK.value}: {'; '.join(leaked)}")
    return Verdict(Status.FAILED, Cause.RESOURCE, "; ".join(left)) if left else None
