"""The ranks of a world of threads: which rank runs, waits or has ended; detects deadlocks and ends waits."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dist_testing.core.ground.error_text import ranks_text, summarise
from dist_testing.core.ground.errors import CollectiveTimeoutError, DeadlockError, PeerFailedError
from dist_testing.core.process.stacks import frames_of_others
from dist_testing.threaded.operation import Call, Failure, Operation, call_site
from dist_testing.threaded.turns import Turns


class GroupState(Protocol):
    """What the world needs to know about a group. The caller holds the lock of the world."""

    def pending(self) -> Iterable[Operation]:
        """Yield the operations that are not done."""

    def end_member(self, member: Member) -> None:
        """Fail the operations that need a rank of the world whose threads have all ended."""


class RankThread(threading.Thread):
    """A rank's own thread. Threads that a rank starts belong to it, but not the ranks of a world that it starts."""


@dataclass(slots=True, eq=False)
class Member:
    """One rank of a world of threads."""

    world: ThreadWorld
    rank: int  # its number in the world, from 0
    # The state of `torch.distributed` on this rank's threads, by the property names of c10d's `_World`.
    c10d: dict[str, Any] = field(default_factory=dict)
    threads: int = 0  # number of its threads that have not ended: its own and those that it started
    ident: int | None = None  # the thread identifier of its own thread; None until that runs


def _locked() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


@dataclass(slots=True, eq=False)
class Wait:
    """One thread that waits for an operation."""

    operation: Operation
    call: Call
    # The rank to which the thread belongs; None for a thread that belongs to no rank of the world.
    member: Member | None
    takes_turns: bool  # whether it is a rank's own thread, which continues only in its turn if there are turns
    rests: bool  # whether it is a rank's, and has no limit of the test's own, so that only another thread can end it
    # A locked lock; releasing it lets the thread continue.
    gate: threading.Lock = field(default_factory=_locked, init=False)


class OfThread:
    """Passes every attribute on to the object that `find` returns on the calling thread."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)


class _Current(threading.local):
    member: Member | None = None


_current = _Current()


def current_member() -> Member | None:
    """Return the rank to which the calling thread belongs: its own thread, or one that it started; else None."""
    return _current.member


@contextlib.contextmanager
def acting_as(member: Member | None) -> Iterator[None]:
    """Make the calling thread belong to a rank, or with None to no rank, in the block."""
    before, _current.member = _current.member, member
    try:
        yield
    finally:
        _current.member = before


class ThreadWorld:
    """The ranks of one world of threads.

    One lock guards all state that the ranks share: this object, its groups and their operations; `with world:` holds
    it. After that, the thread calls the functions of operations that have ended, which may make calls. A thread that
    has to wait adds a `Wait` and blocks on its gate, so that the thread which completes the operation wakes exactly the
    threads that wait for it.
    """

    def __init__(self, size: int, *, in_rank_order: bool) -> None:
        """Create a world of at least one rank. None has started, and only one runs at a time if `in_rank_order`."""
        self.size = size
        self.members = tuple(Member(self, rank) for rank in range(size))
        # By a name on which the ranks of the group have agreed.
        self.groups: dict[str, GroupState] = {}
        # Limit of an operation for which the test has chosen none, in seconds; 0 before there is a default group.
        self.limit_s = 0.0
        # Why no call can complete any more; None as long as calls can.
        self.failure: Failure | None = None
        self.failed_s = math.inf
        self._lock = threading.Lock()
        self.turns = Turns(size, are_on=in_rank_order)
        self._waits: dict[Wait, None] = {}
        # Number of the ranks' threads that do not rest in a wait of a group. At 0, no thread can complete a wait any
        # more.
        self._busy = 0
        # Functions of operations that have ended while the lock was held.
        self._callbacks: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        # One at a time: if one raises, the next thread that has held the lock calls the others.
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # Another thread has taken the last one.
            callback()

    def forked(self) -> None:
        """Make the copy of this world usable in a process that a rank has forked: the thread with the lock is gone."""
        self._lock = threading.Lock()

    def add_thread(self, member: Member) -> None:
        """Count a thread of a rank that is about to start; `leave` takes it off."""
        with self:
            member.threads += 1
            self._busy += 1

    def enter(self, member: Member) -> None:
        """Make the calling thread a rank's own thread. With turns, wait for the rank's first turn."""
        _current.member = member
        member.ident = threading.get_ident()
        self._take_turn(member, has_one=False)

    def give_way(self) -> None:
        """With turns, let the other ranks run before the calling rank continues; else do nothing."""
        if self.turns.are_on and _current.member is not None and _is_rank_thread():
            self._take_turn(_current.member, has_one=True)

    def _take_turn(self, member: Member, *, has_one: bool) -> None:
        gate = _locked()
        with self:
            self.turns.add(member.rank, gate)
            if has_one:
                self.turns.pass_on()
        gate.acquire()

    def leave(self, member: Member, *, is_rank_thread: bool) -> None:
        """Take off a thread of a rank that is about to end, its own or one that it started; end hopeless waits."""
        with self:
            member.threads -= 1
            if member.threads == 0:
                for group in self.groups.values():
                    group.end_member(member)
            self._rest()
            if is_rank_thread:
                self.turns.pass_on()

    def fail(self, member: Member, error: BaseException) -> None:
        """Record that a rank has failed: every wait ends, and later calls fail. Only the first failure counts."""
        with self:
            if self.failure is None:
                self.failed_s = time.monotonic()
                text = (
                    f"Rank {member.rank} has failed: {summarise(error)}\n"
                    "The other ranks cannot complete calls of their groups any more; this error is a consequence, not "
                    "the cause.\n"
                    f"Look at the error of rank {member.rank}."
                )
                self._fail_all(Failure(PeerFailedError, text, names_call=True))

    def abort(self, failure: Failure) -> None:
        """End every wait, refuse later calls, and end the turns. The waits and calls fail with `failure`."""
        with self:
            self._fail_all(failure)
            self.turns.stop()

    def wait(
        self, operation: Operation, call: Call, limit_s: float, *, fails_operation: bool, ends_by_itself: bool
    ) -> None:
        """Block until an operation is done, for at most `limit_s` seconds; raise its error if it fails.

        At the limit the operation fails on all ranks if `fails_operation`; else only this wait fails. A wait that
        `ends_by_itself`, because the test has chosen its limit, is part of no deadlock.
        """
        # Without the lock: `finish` sets the failure first.
        failure = None
        if not operation.is_done:
            failure = self._block(operation, call, limit_s, fails_operation, ends_by_itself)
        if (failure := failure or operation.failure) is not None:
            raise failure.error(call)

    def _block(
        self, operation: Operation, call: Call, limit_s: float, fails_operation: bool, ends_by_itself: bool
    ) -> Failure | None:
        """Block until an operation is done; return the failure of this wait alone, at its limit."""
        member = _current.member
        if member is not None and member.world is not self:
            member = None
        takes_turns = member is not None and _is_rank_thread()
        wait = Wait(operation, call, member, takes_turns, rests=member is not None and not ends_by_itself)
        with self:
            if operation.is_done:
                wait.gate.release()
            else:
                self._waits[wait] = None
                if wait.rests:
                    self._rest()
                if wait.takes_turns:
                    self.turns.pass_on()
        failure = None
        if not wait.gate.acquire(timeout=min(limit_s, threading.TIMEOUT_MAX)):
            with self:
                if not operation.is_done:
                    waiting = _FOREIGN_THREAD if member is None else f"rank {member.rank}"
                    failure = Failure(
                        CollectiveTimeoutError,
                        f"Time limit of {limit_s:.3g} s reached: {waiting} was {_wait_text(wait)}.\n"
                        f"{_activity(self.members, self._waits)}\n"
                        "Most likely a rank is stuck or slow in code outside of its process group.\n"
                        "Look at the ranks that are still running; if they only need more time, set a longer group "
                        "timeout.",
                    )
                    if fails_operation:
                        self.finish(operation, failure)
                    else:
                        self._wake([wait])
            # The wait has ended, by this thread or another; its gate is open, or opens when the rank gets its turn.
            wait.gate.acquire()
        return failure

    def finish(self, operation: Operation, failure: Failure | None) -> None:
        """End an operation that is not done, with success if `failure` is None, and wake the threads that wait for it.

        The caller holds the lock, by `with world:`.
        """
        if operation.is_done:
            return
        operation.failure = failure
        operation.is_done = True
        self._callbacks += operation.on_done
        operation.on_done = []
        self._wake([wait for wait in self._waits if wait.operation is operation])

    def describe_waits_of(self, rank: int) -> list[str]:
        """Return one text for each wait of a rank's threads in a group."""
        with self:
            return [_wait_text(wait) for wait in self._waits if wait.member is self.members[rank]]

    def _wake(self, waits: Iterable[Wait]) -> None:
        for wait in waits:
            del self._waits[wait]
            if wait.rests:
                self._busy += 1
            if wait.member is not None and wait.takes_turns:
                self.turns.add(wait.member.rank, wait.gate)
            else:
                wait.gate.release()

    def _rest(self) -> None:
        """Count a thread of a rank that does not run any more. Without another one, the waits can never end."""
        self._busy -= 1
        if self._busy == 0 and self._waits:
            have_ended = "the only rank of the world waits or has ended"
            if self.size > 1:
                have_ended = f"all {self.size} ranks of the world wait or have ended"
            failure = Failure(
                DeadlockError,
                f"Deadlock: {have_ended}, so no wait can be completed.\n"
                f"{_activity(self.members, self._waits)}\n"
                "Most likely a call depends on the rank, or a send or receive has no counterpart.\n"
                "Let all ranks of a group make the same collective calls in the same order, and pair each send with a "
                "receive; a blocking send waits for its receive.",
            )
            for wait in list(self._waits):
                self.finish(wait.operation, failure)

    def _fail_all(self, failure: Failure) -> None:
        self.failure = failure
        for group in self.groups.values():
            for operation in group.pending():
                self.finish(operation, failure)


def _free_lock() -> None:
    if _current.member is not None:
        _current.member.world.forked()


# A worker of a DataLoader starts threads, each of which counts as one of the rank. It cannot be undone.
os.register_at_fork(after_in_child=_free_lock)


def _is_rank_thread() -> bool:
    return isinstance(threading.current_thread(), RankThread)


def _wait_text(wait: Wait) -> str:
    """Return what a thread waits for and in which call, such as "waiting for rank 1 in barrier() at ..."."""
    return f"waiting for {wait.operation.missing()} in {wait.call} ({wait.operation.title()})"


_FOREIGN_THREAD = "a thread that belongs to no rank"


def _activity(members: Iterable[Member], waits: Iterable[Wait]) -> str:
    """Return what the ranks do, in one line for all ranks that do the same."""
    doing = defaultdict(list)
    of_foreign_threads = []
    for wait in waits:
        if wait.member is None:
            of_foreign_threads.append(f"  {_FOREIGN_THREAD}: {_wait_text(wait)}")
        else:
            doing[_wait_text(wait)].append(wait.member.rank)
    waiting = {wait.member for wait in waits}
    frames = frames_of_others()
    for member in members:
        if member.threads == 0:
            doing["ended"].append(member.rank)
        elif member not in waiting:
            frame = frames.get(member.ident or 0)
            doing[f"running {call_site(frame)}" if frame else "running"].append(member.rank)
    lines = sorted((sorted(ranks), what) for what, ranks in doing.items())
    return "\n".join([*(f"  {ranks_text(ranks)}: {what}" for ranks, what in lines), *of_foreign_threads])
