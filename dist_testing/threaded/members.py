"""The ranks of a world of threads: which rank runs, waits or has ended; detects deadlocks and ends waits."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dist_testing.threaded import explain
from dist_testing.threaded.operation import Call, Failure, Operation, Wait
from dist_testing.threaded.turns import Turns


class GroupState(Protocol):
    """What the world needs to know about a group. The caller holds the lock of the world for every method."""

    def pending(self) -> Iterable[Operation]:
        """Yield the operations that are not done."""

    def pending_on(self, member: Member) -> Iterable[tuple[Operation, Failure]]:
        """Yield the operations that need a rank which has ended, each with the failure for the ranks that wait."""


@dataclass(slots=True, eq=False)
class Member:
    """One rank of a world of threads; the implementation of `operation.RankState`.

    Attributes:
        world: Its world.
        rank: Its number in the world, from 0.
        c10d: The state of `torch.distributed` on this rank's threads, by the property names of c10d's `_World`.
        threads: Number of its threads that have not ended: its own and those that it started.
        ident: The thread identifier of its own thread; None until that runs.
        has_ended: Whether all its threads have ended, so that it makes no further call.
    """

    world: ThreadWorld
    rank: int
    c10d: dict[str, Any] = field(default_factory=dict)
    threads: int = 0
    ident: int | None = None
    has_ended: bool = False


class _Current(threading.local):
    member: Member | None = None
    is_rank_thread = False


_current = _Current()


def current_member() -> Member | None:
    """Return the rank to which the calling thread belongs: its own thread, or one that it started; else None."""
    return _current.member


@contextlib.contextmanager
def acting_as(member: Member | None) -> Iterator[None]:
    """Make the calling thread belong to a rank, or with None to no rank, inside the `with` block."""
    before, _current.member = _current.member, member
    try:
        yield
    finally:
        _current.member = before


class ThreadWorld:
    """The ranks of one world of threads.

    One lock guards all state that the ranks share. A thread that has to wait adds a `Wait` and blocks on its gate, so
    that the thread which completes the operation wakes exactly the threads that wait for it.

    Attributes:
        size: Number of ranks.
        lock: Guards this object, its groups and their operations.
        members: The ranks, in order.
        groups: The state of each group, by a name on which its ranks have agreed.
        failure: Why no call can complete any more; None as long as calls can.
        ended: Number of ranks that have ended.
    """

    def __init__(self, size: int, *, in_rank_order: bool, on_failure: Callable[[], None]) -> None:
        """Create a world of at least one rank. None has started, and only one runs at a time if `in_rank_order`.

        `on_failure` is called once, when the first rank fails.
        """
        self.size = size
        self._on_failure = on_failure
        self.lock = threading.Lock()
        self.members = tuple(Member(self, rank) for rank in range(size))
        self.groups: dict[str, GroupState] = {}
        self.failure: Failure | None = None
        self.ended = 0
        self._turns = Turns(size) if in_rank_order else None
        self._waits: dict[Wait, None] = {}
        # Number of the ranks' threads that are in no wait of a group. At 0, no thread can complete a wait any more.
        self._busy = 0
        # Functions of operations that have ended; see `run_callbacks`.
        self._callbacks: deque[Callable[[], None]] = deque()

    def add_thread(self, member: Member) -> None:
        """Count a thread of a rank that is about to start; `leave` takes it off."""
        with self.lock:
            member.threads += 1
            self._busy += 1

    def enter(self, member: Member) -> None:
        """Make the calling thread a rank's own thread. With turns, wait for the rank's first turn."""
        _current.member = member
        _current.is_rank_thread = True
        member.ident = threading.get_ident()
        self._take_turn(member, has_one=False)

    @property
    def has_turns(self) -> bool:
        """Whether one rank runs at a time."""
        return self._turns is not None

    def give_way(self) -> None:
        """With turns, let the other ranks run before the calling rank continues; else do nothing."""
        if _current.member is not None and _current.is_rank_thread:
            self._take_turn(_current.member, has_one=True)

    def _take_turn(self, member: Member, *, has_one: bool) -> None:
        if self._turns is None:
            return
        gate = threading.Lock()
        with self.lock:
            if self._turns is not None:
                gate.acquire()
                self._turns.add(member.rank, gate)
                if has_one:
                    self._turns.pass_on()
        gate.acquire()

    def leave(self, member: Member, *, is_rank_thread: bool) -> None:
        """Take off a thread of a rank that is about to end, its own or one that it started; end hopeless waits."""
        with self.lock:
            self._busy -= 1
            member.threads -= 1
            if member.threads == 0:
                member.has_ended = True
                self.ended += 1
                lost = [pair for group in self.groups.values() for pair in group.pending_on(member)]
                for operation, failure in lost:
                    self.finish(operation, failure)
            if self._busy == 0:
                self._break_deadlock()
            if is_rank_thread and self._turns is not None:
                self._turns.pass_on()
        self.run_callbacks()

    def fail(self, member: Member, error: BaseException) -> None:
        """Record that a rank has failed with an error: every wait ends, and later calls fail.

        Only the first failure of a world counts.
        """
        with self.lock:
            if self.failure is None:
                self._fail_all(explain.peer_failed(member.rank, error))
                self._callbacks.append(self._on_failure)
        self.run_callbacks()

    def abort(self, failure: Failure) -> None:
        """End every wait, refuse later calls, and end the turns. The waits and calls fail with `failure`."""
        with self.lock:
            self._fail_all(failure)
            if self._turns is not None:
                self._turns.stop()
                self._turns = None
        self.run_callbacks()

    def forget(self) -> None:
        """Drop the references that point back to the world after its end, so that it is freed at once."""
        self.members = ()
        self.groups = {}
        del self._on_failure

    def wait(self, operation: Operation, call: Call, limit_s: float, *, fails_operation: bool) -> None:
        """Block until an operation is done, for at most `limit_s` seconds.

        At the limit the operation fails on all ranks if `fails_operation`; else only this wait fails.

        Raises:
            CollectiveError: If the operation fails, or is not done within the limit.
        """
        if not operation.is_done:
            self._block(operation, call, limit_s, fails_operation=fails_operation)
        if operation.failure is not None:
            raise operation.failure.error(call)

    def _block(self, operation: Operation, call: Call, limit_s: float, *, fails_operation: bool) -> None:
        member = _current.member
        if member is not None and member.world is not self:
            member = None
        wait = Wait(operation, call, member, takes_turns=member is not None and _current.is_rank_thread)
        with self.lock:
            if operation.is_done:
                return
            operation.waits.append(wait)
            self._waits[wait] = None
            if member is not None:
                self._busy -= 1
                if self._busy == 0:
                    self._break_deadlock()
                if wait.takes_turns and self._turns is not None:
                    self._turns.pass_on()
        self.run_callbacks()
        failure = None
        if not wait.gate.acquire(timeout=min(limit_s, threading.TIMEOUT_MAX)):
            failure = self._give_up(wait, limit_s, fails_operation=fails_operation)
            # The wait has ended, by this thread or another; its gate is open, or opens when the rank gets its turn.
            wait.gate.acquire()
        if wait.next is not None:
            wait.next.gate.release()
        if failure is not None:
            raise failure.error(call)

    def _give_up(self, wait: Wait, limit_s: float, *, fails_operation: bool) -> Failure | None:
        """End a wait at its limit; return the failure of this wait alone, or None if the operation has ended."""
        operation = wait.operation
        failure = None
        with self.lock:
            if not operation.is_done:
                failure = explain.timed_out(self.members, self._waits, wait, limit_s)
                if fails_operation:
                    self.finish(operation, failure)
                else:
                    operation.waits.remove(wait)
                    self._wake([wait])
        self.run_callbacks()
        return None if fails_operation else failure

    def finish(self, operation: Operation, failure: Failure | None) -> None:
        """End an operation that is not done, with success if `failure` is None, and wake the threads that wait for it.

        The caller holds the lock; after it has released the lock, it has to call `run_callbacks`.
        """
        if operation.is_done:
            return
        operation.failure = failure
        operation.is_done = True
        self._callbacks += operation.on_done
        operation.on_done = []
        if operation.waits:
            self._wake(operation.waits)
            operation.waits = []

    def run_callbacks(self) -> None:
        """Call the functions of operations that have ended, without the lock: they may make calls of their own."""
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # Another thread has taken the last one.
            callback()

    def describe_waits_of(self, rank: int) -> list[str]:
        """Return one text for each wait of a rank's threads in a group; an empty list if there is none."""
        with self.lock:
            return [explain.wait_text(wait) for wait in self._waits if wait.member is self.members[rank]]

    def _wake(self, waits: Iterable[Wait]) -> None:
        first = last = None
        for wait in waits:
            del self._waits[wait]
            if wait.member is None:
                # It may be the main thread, which a signal can interrupt; so no other wait depends on it.
                wait.gate.release()
                continue
            self._busy += 1
            if wait.takes_turns and self._turns is not None:
                self._turns.add(wait.member.rank, wait.gate)
                continue
            if last is None:
                first = wait
            else:
                last.next = wait
            last = wait
        # Comes last, because this thread wakes the next one as soon as it runs.
        if first is not None:
            first.gate.release()

    def _fail_all(self, failure: Failure) -> None:
        self.failure = failure
        pending = [operation for group in self.groups.values() for operation in group.pending()]
        for operation in pending:
            self.finish(operation, failure)

    def _break_deadlock(self) -> None:
        if self._waits:
            failure = explain.deadlock(self.members, self._waits)
            for wait in list(self._waits):
                self.finish(wait.operation, failure)
