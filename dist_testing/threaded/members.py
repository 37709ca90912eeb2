"""The ranks of a world of threads: who runs, who waits for what, who has ended, and that nobody waits in vain."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from dist_testing.threaded import explain
from dist_testing.threaded.operation import Call, Failure, Operation, Wait
from dist_testing.threaded.turns import Turns

__all__ = ["GroupState", "Member", "ThreadWorld", "acting_as", "current_member", "run_all"]


class GroupState(Protocol):
    """What the ranks of a group have in common, as far as the world has to know it. Called under the world's lock."""

    def pending(self) -> Iterable[Operation]:
        """Operations that are not over."""

    def pending_on(self, member: Member) -> Iterable[tuple[Operation, Failure]]:
        """Those of them that need a rank which has ended, each with what to tell those who wait."""


class Member:
    """One rank.

    Attributes:
        world: Its world.
        rank: Its number.
        c10d: What torch.distributed knows on this rank's threads, by the names of its world's properties.
        threads: How many of its threads there are: its own and those that it started.
        ident: Of its own thread; None until that runs.
        has_ended: Whether there is none any more; nothing will come from this rank.
    """

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.c10d: dict[str, Any] = {}
        self.threads = 0
        self.ident: int | None = None
        self.has_ended = False


class _Current(threading.local):
    member: Member | None = None
    is_rank_thread = False


_current = _Current()
_names = itertools.count()


def current_member() -> Member | None:
    """The rank that the calling thread is, or was started by; None outside of any world."""
    return _current.member


@contextlib.contextmanager
def acting_as(member: Member | None) -> Iterator[None]:
    """In the block, the calling thread is seen as the rank's."""
    before, _current.member = _current.member, member
    try:
        yield
    finally:
        _current.member = before


class ThreadWorld:
    """Some ranks in one process.

    One lock guards everything that ranks have in common. A thread that has to wait leaves a `Wait` and sleeps on its
    gate, so that whoever completes the operation wakes exactly those who wait for it.

    Attributes:
        size: Number of ranks.
        lock: The lock.
        members: The ranks.
        groups: What their groups have in common, by a name that the ranks of each have agreed on.
        failure: Why no call can be completed any more; None while they can.
        ended: How many ranks have ended.
    """

    def __init__(self, size: int, *, in_rank_order: bool = False, on_failure: Callable[[], None] | None = None) -> None:
        """Make a world whose ranks have not begun.

        Args:
            size: Number of ranks.
            in_rank_order: Whether only one rank runs at a time, see `Turns`.
            on_failure: Called when the first rank fails.
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
        # Threads of ranks that wait for nothing that we know of. At 0, nobody is left who could complete a wait.
        self._busy = 0

    def new_name(self) -> str:
        """A name that nothing in this process has had."""
        return f"threads-{next(_names)}"

    def add_thread(self, member: Member) -> None:
        """A thread of a rank is about to start."""
        with self.lock:
            member.threads += 1
            self._busy += 1

    def enter(self, member: Member, *, is_rank_thread: bool) -> None:
        """The calling thread is one of a rank's. Returns when it is its turn, where there are turns."""
        _current.member = member
        _current.is_rank_thread = is_rank_thread
        if not is_rank_thread:
            return
        member.ident = threading.get_ident()
        self._take_turn(member, has_one=False)

    def give_way(self) -> None:
        """Let the other ranks go on, where only one does so at a time; the calling thread goes on after them."""
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

    def leave(self, member: Member, error: BaseException | None = None, *, is_rank_thread: bool) -> None:
        """A thread of a rank is about to end.

        Args:
            member: The rank.
            error: What its body raised.
            is_rank_thread: Whether it is the rank's own thread, not one that it started.
        """
        callbacks: list[Callable[[], None]] = []
        with self.lock:
            self._busy -= 1
            member.threads -= 1
            if error is not None:
                self._fail(member, error, callbacks)
            if member.threads == 0:
                member.has_ended = True
                self.ended += 1
                lost = [pair for group in self.groups.values() for pair in group.pending_on(member)]
                for operation, failure in lost:
                    self.finish(operation, failure, callbacks)
            if self._busy == 0:
                self._break_deadlock(callbacks)
            if is_rank_thread and self._turns is not None:
                self._turns.pass_on()
        run_all(callbacks)

    def fail(self, member: Member, error: BaseException) -> None:
        """A rank has failed, though it has not ended: wake those that wait, who are its victims.

        Args:
            member: The rank.
            error: Why.
        """
        callbacks: list[Callable[[], None]] = []
        with self.lock:
            self._fail(member, error, callbacks)
        run_all(callbacks)

    def abort(self, failure: Failure) -> None:
        """Wake every thread that waits, let no further call begin, and end the turns."""
        callbacks: list[Callable[[], None]] = []
        with self.lock:
            self._fail_all(failure, callbacks)
            if self._turns is not None:
                self._turns.stop()
                self._turns = None
        run_all(callbacks)

    def forget(self) -> None:
        """The world is over and nobody will look at it: let go of what points back to it."""
        self.members = ()
        self.groups = {}
        self._on_failure = None

    def wait(self, operation: Operation, call: Call, limit_s: float, *, fails_operation: bool) -> None:
        """Block until an operation is over.

        Args:
            operation: What to wait for.
            call: The call that waits.
            limit_s: For how long.
            fails_operation: Whether the operation is over for everybody when the limit is reached.

        Raises:
            CollectiveError: If it fails, or is not over in time.
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
        callbacks: list[Callable[[], None]] = []
        with self.lock:
            if operation.is_done:
                return
            operation.waits.append(wait)
            self._waits[wait] = None
            if member is not None:
                self._busy -= 1
                if self._busy == 0:
                    self._break_deadlock(callbacks)
                if wait.takes_turns and self._turns is not None:
                    self._turns.pass_on()
        if callbacks:
            run_all(callbacks)
        failure = None
        if not wait.gate.acquire(timeout=min(limit_s, threading.TIMEOUT_MAX)):
            failure = self._give_up(wait, limit_s, fails_operation=fails_operation)
            # Whoever ended the wait, this thread or another, has opened the gate or will do so when it is its turn.
            wait.gate.acquire()
        if wait.next is not None:
            wait.next.gate.release()
        if failure is not None:
            raise failure.error(call)

    def _give_up(self, wait: Wait, limit_s: float, *, fails_operation: bool) -> Failure | None:
        """Nothing came in time. Gives the failure of the wait, if it is not the operation's."""
        operation = wait.operation
        callbacks: list[Callable[[], None]] = []
        failure = None
        with self.lock:
            if not operation.is_done:
                failure = explain.timed_out(self.members, self._waits, wait, limit_s)
                if fails_operation:
                    self.finish(operation, failure, callbacks)
                else:
                    operation.waits.remove(wait)
                    self._wake([wait])
        run_all(callbacks)
        return None if fails_operation else failure

    def finish(self, operation: Operation, failure: Failure | None, callbacks: list[Callable[[], None]]) -> None:
        """End an operation and wake who waits for it. Under the lock.

        Args:
            operation: It. Nothing happens if it is over already.
            failure: Why it could not be done; None if it was.
            callbacks: Gets what has to be called when the lock is released.
        """
        if operation.is_done:
            return
        operation.failure = failure
        operation.is_done = True
        callbacks += operation.on_done
        operation.on_done = []
        if operation.waits:
            self._wake(operation.waits)
            operation.waits = []

    def describe_waits_of(self, rank: int) -> list[str]:
        """What the threads of a rank wait for in their groups; nothing if they do not."""
        with self.lock:
            return [explain.wait_text(wait) for wait in self._waits if wait.member is self.members[rank]]

    def _wake(self, waits: Iterable[Wait]) -> None:
        first = last = None
        for wait in waits:
            del self._waits[wait]
            if wait.member is None:
                # Perhaps the main thread, which an interrupt can take out of the row.
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
        # Last, because from then on the others follow.
        if first is not None:
            first.gate.release()

    def _fail(self, member: Member, error: BaseException, callbacks: list[Callable[[], None]]) -> None:
        if self.failure is None:
            self._fail_all(explain.peer_failed(member.rank, error), callbacks)
            if self._on_failure is not None:
                callbacks.append(self._on_failure)

    def _fail_all(self, failure: Failure, callbacks: list[Callable[[], None]]) -> None:
        self.failure = failure
        pending = [operation for group in self.groups.values() for operation in group.pending()]
        for operation in pending:
            self.finish(operation, failure, callbacks)

    def _break_deadlock(self, callbacks: list[Callable[[], None]]) -> None:
        if self._waits:
            failure = explain.deadlock(self.members, self._waits)
            for wait in list(self._waits):
                self.finish(wait.operation, failure, callbacks)


def run_all(callbacks: Iterable[Callable[[], None]]) -> None:
    """Call what `ThreadWorld.finish` left."""
    for callback in callbacks:
        callback()
