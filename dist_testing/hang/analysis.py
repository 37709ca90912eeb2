"""Proves from the ledgers of all ranks that no rank of a world can ever go on: a pure function, and its reasons.

A rank *can move* unless the ledger shows that it cannot. It cannot move by itself if its case has ended, or if its main
thread waits for something that only another rank can give, without a limit that the user chose, and nothing else on the
rank runs the user's code. Such a rank can move as soon as the ranks that it waits for have done their part:

| it waits for | it can move if |
|---|---|
| a collective | each member that has not begun this call can move; none is missing: it can move now |
| one of several collectives | one of them can end |
| a receive from a rank | that rank is about to send to it, or can move |
| a receive from any rank | so for one of the group's members |
| a send to a rank | that rank is about to receive from it, or can move |
| a monitored barrier, a group that is made, the world's barrier | each member that is not in it can move |

The least solution of these rules is the set of ranks that can move. The hang is proven if the set is empty and at least
one rank waits. No correct program is stopped: the ranks of a correct program that has not ended are on the way to a
call, so one of them can move; or they are all in one call, and then it is in flight, and all of them can move. If
members make different calls with one number, the program is wrong; such a call never ends.

The ledgers are taken one after the other. `dist_testing.hang.watch` sees to it that they describe one moment:
nothing may have changed between two looks at all ranks, and no rank may have run in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.core.ground.backends import all_declared
from dist_testing.hang.call_rules import are_alike
from dist_testing.hang.ledger import COLLECTIVE, TORCH_LIMITS_MS, Call, Ledger, Wait, WaitKind

# Why nothing is known of the collectives of a rank.
NOT_RECORDED = "waits without a record of its collectives (TORCH_FR_BUFFER_SIZE=0, or torch before 2.12)"


@dataclass(frozen=True, slots=True)
class RankView:
    """What is known of one rank at one moment."""

    rank: int
    ended: str  # how its case has ended, such as "ended the test"; "" if it runs
    ledger: Ledger | None  # None if it did not tell it
    silence: str = ""  # why it did not, for a report

    @property
    def wait(self) -> Wait | None:
        """What it waits for in its case; None if that is not known."""
        return self.ledger.wait if self.ledger is not None and not self.ended else None

    @property
    def place(self) -> str:
        """File and line of the test that it is in; "" if that is not known."""
        return self.ledger.place if self.ledger is not None else ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Members of one group have made different calls at the same number."""

    group: str  # name of the group
    number: int  # of the call
    calls: Mapping[int, Call]  # rank to its call
    missing: frozenset[int] = frozenset()  # members that have not begun a call of this number


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits."""

    wait: Wait
    call: Call | None  # the collective, if it is one and it is known which
    # The ranks that have to do something first. Each of these sets is enough; an empty one says that it can move now.
    missing: tuple[frozenset[int], ...]
    mismatches: tuple[Mismatch, ...] = ()  # of calls that can never end, because members have made different ones
    ends_by_itself: bool = False  # whether it can move by itself, too: at a limit that the test has chosen


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the ledgers say of a world."""

    views: Mapping[int, RankView]  # what it was made from, by rank
    waiting: Mapping[int, Waiting]  # rank to what it waits for, of ranks that can move by themselves only at a limit
    free: Mapping[int, str]  # rank to why it can move by itself
    movable: frozenset[int]  # ranks that can move, now or after others

    @property
    def is_proven(self) -> bool:
        """Whether no rank can ever go on, although at least one has not ended."""
        return bool(self.waiting) and not self.movable


def analyse(views: Sequence[RankView], limits_ms: frozenset[int] = frozenset()) -> Analysis:
    """Find the ranks that can move, from a view of each rank of the world.

    `limits_ms` are those that this library has given to groups and stores, in milliseconds. A wait with any other limit
    than these and torch's defaults ends by itself: the user chose it.
    """
    by_rank = {view.rank: view for view in views}
    known_ms = limits_ms | TORCH_LIMITS_MS
    waiting: dict[int, Waiting] = {}
    free: dict[int, str] = {}
    for view in views:
        found = _waiting(view, by_rank, known_ms)
        if isinstance(found, str):
            free[view.rank] = found
        elif found is not None:
            waiting[view.rank] = found
            if found.ends_by_itself:
                free[view.rank] = "waits with a limit of the test's own"
    movable = movable_with(free, {rank: found.missing for rank, found in waiting.items()})
    return Analysis(by_rank, waiting, free, movable)


def movable_with(free: Iterable[int], needs: Mapping[int, Iterable[frozenset[int]]]) -> frozenset[int]:
    """Return the ranks that can move, if those in `free` can by themselves: the least solution.

    `needs` are the sets of ranks that are each enough for a rank.
    """
    movable = set(free)
    while more := {
        rank for rank, sets in needs.items() if rank not in movable and any(enough <= movable for enough in sets)
    }:
        movable |= more
    return frozenset(movable)


def _waiting(view: RankView, views: Mapping[int, RankView], known_ms: frozenset[int]) -> Waiting | str | None:
    """What a rank waits for; why it can move by itself; or None for a rank that has ended and does nothing more."""
    ledger = view.ledger
    if ledger is None:
        return view.silence
    if ledger.others:
        return f"has {', '.join(ledger.others)}"
    if view.ended:
        return None
    wait = ledger.wait
    if wait is None:
        return "has not reached the call"
    if wait.kind in COLLECTIVE:
        return _in_collective(view.rank, ledger, wait, views, known_ms)
    missing = _missing(view.rank, ledger, wait, views)
    if missing is None:
        return "waits in a group that is not known"
    return Waiting(wait, None, missing, ends_by_itself=wait.limit_ms not in known_ms)


def _hooked(ledger: Ledger, group: str) -> list[Call]:
    """The last call of a group that hooks record: for them a call ends when it returns, and the wait comes after."""
    calls = [call for call in ledger.calls if call.group == group]
    return [call for call in calls[-1:] if not all_declared(call.backend, lambda declared: declared.records_calls)]


def _in_collective(
    rank: int, ledger: Ledger, wait: Wait, views: Mapping[int, RankView], known_ms: frozenset[int]
) -> Waiting | str:
    if not ledger.is_recording:
        return NOT_RECORDED
    pending = [call for call in ledger.calls if not call.is_done]
    if wait.kind is WaitKind.COLLECTIVE:
        pending = [call for call in pending if call.group == wait.group][-1:] or _hooked(ledger, wait.group)
    if not pending:
        return "waits for a call that has just ended"
    missing = []
    mismatches = []
    for call in pending:
        members = ledger.groups.get(call.group)
        if members is None or not set(members) <= views.keys():
            return f"waits in a group that is not known ({call.group})"
        absent = frozenset(other for other in members if other != rank and not _has_begun(call, views[other], members))
        calls = _calls_of_members(rank, call, members, views)
        if are_alike(calls.values()):
            missing.append(absent)
        else:
            mismatches.append(Mismatch(call.group, call.number, calls, absent))
    ends_by_itself = any(call.limit_ms not in known_ms for call in pending)
    return Waiting(wait, pending[0], tuple(dict.fromkeys(missing)), tuple(mismatches), ends_by_itself)


def _has_begun(call: Call, view: RankView, members: tuple[int, ...]) -> bool:
    """Whether a member has begun a call, or may have."""
    ledger = view.ledger
    if ledger is None:
        # It can move, so this proves nothing.
        return False
    if not ledger.is_recording:
        return True
    if ledger.groups.get(call.group) not in (None, members) or any(
        other.generation != call.generation for other in ledger.calls if other.group == call.group
    ):
        # Another group of the same name.
        return True
    if call.group not in ledger.last:
        return not ledger.is_complete
    return ledger.last[call.group] >= call.number


def _calls_of_members(
    rank: int, call: Call, members: tuple[int, ...], views: Mapping[int, RankView]
) -> dict[int, Call]:
    """Each member's own call of the same number, as far as its record holds it."""
    calls = {rank: call}
    for other in members:
        ledger = views[other].ledger
        if other == rank or ledger is None or ledger.groups.get(call.group) not in (None, members):
            continue
        for theirs in ledger.calls:
            if (theirs.group, theirs.generation, theirs.number) == (call.group, call.generation, call.number):
                calls[other] = theirs
    return calls


def _missing(rank: int, ledger: Ledger, wait: Wait, views: Mapping[int, RankView]) -> tuple[frozenset[int], ...] | None:
    """The sets of ranks that are enough for what is no collective; None if the group is not known."""
    members = wait.ranks or ledger.groups.get(wait.group)
    if members is None or rank not in members or not set(members) <= views.keys():
        return None
    if wait.kind in (WaitKind.MONITORED, WaitKind.MEETING):
        waits = {other: views[other].wait for other in members if other != rank}
        same = (wait.kind, wait.group)
        return (
            frozenset(other for other, theirs in waits.items() if not theirs or (theirs.kind, theirs.group) != same),
        )
    if wait.peer == -1 and wait.kind is WaitKind.RECEIVE:
        peers = [other for other in members if other != rank]
    elif wait.peer in members:
        peers = [wait.peer]
    else:
        return None
    return tuple(frozenset() if _meets(rank, wait, views[peer].wait) else frozenset({peer}) for peer in peers)


def _meets(rank: int, wait: Wait, theirs: Wait | None) -> bool:
    """Whether a peer is in the send or receive that `wait` of `rank` is for."""
    if theirs is None or (theirs.group, theirs.tag) != (wait.group, wait.tag):
        return False
    if wait.kind is WaitKind.RECEIVE:
        return theirs.kind is WaitKind.SEND and theirs.peer == rank
    return theirs.kind is WaitKind.RECEIVE and theirs.peer in (rank, -1)
