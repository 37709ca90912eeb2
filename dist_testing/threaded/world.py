"""Runs a body on threads that are the ranks of one world."""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from dist_testing.errors import CollectiveTimeoutError, LaunchError, PeerFailedError, UsageError
from dist_testing.rank.stacks import stack_of
from dist_testing.spec import MAX_WORLD_SIZE
from dist_testing.threaded import BACKEND
from dist_testing.threaded.members import Member, ThreadWorld, current_member
from dist_testing.threaded.operation import Failure

__all__ = [
    "ORDER_VARIABLE",
    "PEER_GRACE_S",
    "ThreadOutcome",
    "fail_world",
    "run_on_threads",
]

# From the first failure to the verdict, for ranks that do not wait in a group and so cannot be woken. Longer than for
# processes: a thread cannot be stopped, it can only be left behind. Seconds.
PEER_GRACE_S = 2.0
# For threads that a deadline has woken, so that they end before the next case begins. Seconds.
_END_LIMIT_S = 1.0
# A signal that comes between Python's last look and the wait itself is handled when the wait ends. Seconds.
_LONGEST_WAIT_S = 1.0
# By which the default group outlasts the run: at the deadline all ranks are told with their stacks, and no rank gets
# ahead of it with an error of its own. Seconds.
_GROUP_OUTLASTS_S = 60.0
# "ranks": one rank runs at a time, in the order of ranks (see `Turns`).
ORDER_VARIABLE = "DIST_TESTING_THREAD_ORDER"


@dataclass(frozen=True, slots=True)
class ThreadOutcome:
    """How one rank ended.

    Attributes:
        rank: The rank.
        error: What its body raised, with its traceback; None if it returned, or has not ended.
        is_victim: Whether the error is only the consequence of another rank's end.
        stack: What its thread waits for in its groups, and where it is, if it had not ended when the run was over;
            else "".
    """

    rank: int
    error: BaseException | None
    is_victim: bool
    stack: str


def fail_world(error: BaseException) -> None:
    """Tell the other ranks that the calling thread's rank has failed, before it ends; nothing outside of a world.

    For those who keep a body's errors to themselves: `run_on_threads` tells of what a body raises.
    """
    member = current_member()
    if member is not None:
        member.world.fail(member, error)


def run_on_threads(
    body: Callable[[int], None],
    world_size: int,
    *,
    timeout_s: float,
    init: bool = True,
    on_ready: Callable[[], None] | None = None,
    grace_s: float = PEER_GRACE_S,
    in_rank_order: bool | None = None,
) -> list[ThreadOutcome]:
    """Run `body(rank)` on threads that are the ranks of one world, each with a torch.distributed of its own.

    The first rank that raises wakes those that wait in a group. Returns when all have ended, at the deadline, or some
    time after the first failure, and never later: a thread that hangs is left behind (it is a daemon), and keeps its
    world to itself.

    Args:
        body: The test. What it raises, whatever it is, becomes the rank's outcome.
        world_size: Number of ranks.
        timeout_s: Until the deadline, in seconds.
        init: Whether each rank has the default group, of backend "threaded", from before the body to after it.
        on_ready: Called once, on the thread of the rank that is the last to be ready for its body.
        grace_s: From the first failure to the return, for ranks that do not wait in a group, in seconds.
        in_rank_order: Whether one rank runs at a time, see `Turns`; by default what `ORDER_VARIABLE` says.

    Returns:
        One per rank, in the order of ranks.

    Raises:
        UsageError: If an argument, or the variable, is out of range.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise UsageError(
            f"world_size = {world_size!r} for ranks that are threads.\n"
            f"A world has 1 to {MAX_WORLD_SIZE} ranks.\n"
            "Give a number in that range."
        )
    if not timeout_s > 0:
        raise UsageError(
            f"timeout_s = {timeout_s!r} for ranks that are threads.\n"
            "A run that has no time ends before its ranks have begun.\n"
            "Give a positive number of seconds."
        )
    is_ordered = _is_ordered() if in_rank_order is None else in_rank_order
    run = _Run(body, world_size, timeout_s=timeout_s, init=init, on_ready=on_ready, is_ordered=is_ordered)
    return run.outcomes(grace_s)


def _is_ordered() -> bool:
    order = os.environ.get(ORDER_VARIABLE, "")
    if order not in ("", "ranks"):
        raise UsageError(
            f"{ORDER_VARIABLE}={order!r} in the environment.\n"
            'The only order that ranks can be run in is "ranks": one at a time, from the lowest to the highest.\n'
            "Set it to that, or not at all."
        )
    return bool(order)


class _RankThread(threading.Thread):
    # Threads that a rank starts are its own; ranks of a world that it starts are not.
    is_rank = True

    def __init__(self, run: _Run, member: Member) -> None:
        super().__init__(name=f"rank-{member.rank}", daemon=True)
        # Opened when all ranks have been started, one after the other: they would else fight for Python's lock with
        # each other and with the thread that starts them.
        self.gate = threading.Lock()
        self.gate.acquire()
        self.follower: _RankThread | None = None
        self._of_run = run
        self._member = member

    def run(self) -> None:
        self.gate.acquire()
        if self.follower is not None:
            self.follower.gate.release()
            self.follower = None
        self._of_run.run_rank(self._member)
        del self._of_run, self._member


@dataclass(frozen=True, slots=True)
class _End:
    """A rank has ended.

    Attributes:
        error: With this; None if its body has returned.
    """

    error: BaseException | None


class _Run:
    """One call of `run_on_threads`."""

    def __init__(
        self,
        body: Callable[[int], None],
        world_size: int,
        *,
        timeout_s: float,
        init: bool,
        on_ready: Callable[[], None] | None,
        is_ordered: bool,
    ) -> None:
        # torch is loaded when ranks are asked for, and not before: see the package.
        from torch._C._distributed_c10d import HashStore

        self._body = body
        # "failed" when the first rank has failed, "ended" when all have ended.
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._world = world = ThreadWorld(
            world_size, in_rank_order=is_ordered, on_failure=lambda: self._news.put("failed")
        )
        self._timeout = timedelta(seconds=timeout_s)
        self._init = init
        self._on_ready = on_ready
        self._lock = threading.Lock()
        self._unready = self._alive = world.size
        self._ends: list[_End | None] = [None] * world.size
        self._store = HashStore()
        self._store.set_timeout(self._timeout)
        self._threads = [_RankThread(self, member) for member in world.members]

    def outcomes(self, grace_s: float) -> list[ThreadOutcome]:
        """Start the ranks and wait for them."""
        from dist_testing.threaded import isolation

        deadline_s = time.monotonic() + self._timeout.total_seconds()
        isolation.hold()
        for member in self._world.members:
            self._world.add_thread(member)
        try:
            self._start()
            has_ended = self._wait_ended(deadline_s, grace_s)
            ends = list(self._ends)
            stacks = [self._stack(rank) if end is None else "" for rank, end in enumerate(ends)]
        finally:
            # Also when this thread is interrupted: nobody is left waiting in a group.
            self._world.abort(_OVER)
        if has_ended or self._wait_ended(time.monotonic() + _END_LIMIT_S, _END_LIMIT_S):
            # Who runs many worlds would else pay for garbage collections with every few of them.
            self._threads.clear()
            self._world.forget()
        errors = [None if end is None else end.error for end in ends]
        return [
            ThreadOutcome(rank, error, isinstance(error, PeerFailedError), stack)
            for rank, (error, stack) in enumerate(zip(errors, stacks, strict=True))
        ]

    def run_rank(self, member: Member) -> None:
        """A rank, on its thread."""
        from dist_testing.threaded import isolation

        error: BaseException | None = None
        self._world.enter(member, is_rank_thread=True)
        try:
            isolation.enter_rank()
            if self._init:
                self._make_group(member.rank)
            self._tell_ready()
            self._body(member.rank)
            # Never after a failure: groups of other backends could wait for ranks that are gone.
            if self._world.failure is None:
                isolation.destroy_groups()
        # Whatever a body ends with is its outcome: also SystemExit, and what pytest and unittest skip with.
        except BaseException as raised:
            error = raised
        self._world.leave(member, error, is_rank_thread=True)
        isolation.leave_rank(member)
        self._end(member.rank, error)

    def _start(self) -> None:
        started: list[_RankThread] = []
        reason = "it was interrupted"
        try:
            for thread in self._threads:
                thread.start()
                started.append(thread)
        except RuntimeError as error:
            reason = str(error)
        finally:
            for member in self._world.members[len(started) :]:
                failure = LaunchError(
                    f"The thread of rank {member.rank} of {self._world.size} cannot be started: {reason}.\n"
                    "Most likely the limit of processes and threads is reached (ulimit -u, or the container's).\n"
                    "Use a smaller world, or raise the limit."
                )
                self._world.leave(member, failure, is_rank_thread=True)
                self._end(member.rank, failure)
            for thread, follower in itertools.pairwise(started):
                thread.follower = follower
            if started:
                started[0].gate.release()

    def _end(self, rank: int, error: BaseException | None) -> None:
        from dist_testing.threaded import isolation

        with self._lock:
            self._ends[rank] = _End(error)
            self._alive -= 1
            is_last = self._alive == 0
        if is_last:
            isolation.release()
            self._news.put("ended")

    def _make_group(self, rank: int) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            BACKEND,
            store=self._store,
            rank=rank,
            world_size=self._world.size,
            timeout=self._timeout + timedelta(seconds=_GROUP_OUTLASTS_S),
        )

    def _tell_ready(self) -> None:
        if self._on_ready is None:
            return
        with self._lock:
            self._unready -= 1
            is_last = self._unready == 0
        if is_last:
            self._on_ready()

    def _wait_ended(self, deadline_s: float, grace_s: float) -> bool:
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            try:
                news = self._news.get(timeout=min(left_s, _LONGEST_WAIT_S))
            except queue.Empty:
                if left_s > _LONGEST_WAIT_S:
                    continue
                return False
            if news == "ended":
                return True
            deadline_s = min(deadline_s, time.monotonic() + grace_s)

    def _stack(self, rank: int) -> str:
        frame = sys._current_frames().get(self._threads[rank].ident or 0)
        lines = self._world.describe_waits_of(rank)
        if frame is None:
            # A thread that ends at this very moment has none any more.
            return "\n".join([*lines, "(about to end)"])
        return "\n".join([*lines, stack_of(frame)])


_OVER = Failure(
    CollectiveTimeoutError,
    "The world of this rank is over: its deadline has passed, or it was interrupted.\n"
    "The rank's outcome has been told already; this error only ends its thread.\n"
    "Look at the report of the case.",
    names_call=True,
)
