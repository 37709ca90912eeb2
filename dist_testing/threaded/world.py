"""Runs a function on threads that are the ranks of one world."""

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

from dist_testing.budget import MAX_TIMEOUT_S
from dist_testing.errors import CollectiveTimeoutError, LaunchError, PeerFailedError, UsageError
from dist_testing.process.stacks import stack_of
from dist_testing.spec import check_world_size
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

# Time from the first failure to the verdict, for ranks that are in no wait of a group, so that nothing can wake them.
# Longer than for processes, because a thread cannot be stopped, only left behind. Seconds.
PEER_GRACE_S = 2.0
# Time for threads that the deadline has woken, so that they end before the next case begins. Seconds.
_END_LIMIT_S = 1.0
# Longest single wait. Python handles a signal that arrives just before a wait only when the wait ends. Seconds.
_LONGEST_WAIT_S = 1.0
# Added to the run's time for the timeout of the default group, so that at the deadline the run reports the stacks of
# all ranks, instead of a time limit of one rank's call. Seconds.
_GROUP_OUTLASTS_S = 60.0
# Environment variable; with "ranks", one rank runs at a time, in the order of ranks (see `Turns`).
ORDER_VARIABLE = "DIST_TESTING_THREAD_ORDER"


@dataclass(frozen=True, slots=True)
class ThreadOutcome:
    """How one rank ended.

    Attributes:
        rank: The rank, from 0.
        error: The exception that its body raised, with its traceback; None if the body returned, or has not ended.
        is_victim: Whether the error is only the consequence of another rank's failure.
        stack: For a rank that had not ended when the run was over, its waits in groups and the stack of its thread;
            else "".
    """

    rank: int
    error: BaseException | None
    is_victim: bool
    stack: str


def fail_world(error: BaseException) -> None:
    """Tell the other ranks that the calling thread's rank has failed, before the rank ends.

    For callers that catch a body's errors themselves; `run_on_threads` does the same for an error that the body raises.
    Does nothing on a thread that belongs to no rank.

    Args:
        error: The exception with which the rank failed.
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
    """Run `body(rank)` on threads that are the ranks of one world, each with its own `torch.distributed` state.

    The first rank that raises wakes the ranks that wait in a group. The call returns when all ranks have ended, at the
    deadline, or `grace_s` after the first failure, whichever is first. A thread that has not ended by then is left
    behind: it is a daemon thread, and keeps its world to itself.

    Args:
        body: The test. Any exception that it raises, `SystemExit` included, becomes the rank's outcome.
        world_size: Number of ranks, from 1 to `MAX_WORLD_SIZE`.
        timeout_s: Time until the deadline, in seconds, positive and at most `MAX_TIMEOUT_S`.
        init: Whether each rank gets a default group of backend "threaded" before the body, and loses it after a pass,
            as by `torch.distributed.init_process_group` and `destroy_process_group`.
        on_ready: Called once, on the thread of the last rank that becomes ready for its body.
        grace_s: Time from the first failure to the return, for ranks that are in no wait of a group, in seconds.
        in_rank_order: Whether one rank runs at a time; see `Turns`. By default the value of `ORDER_VARIABLE` decides.

    Returns:
        One outcome per rank, in the order of ranks.

    Raises:
        UsageError: If `world_size`, `timeout_s` or the environment variable is out of range.
    """
    check_world_size("run_on_threads", world_size, "Give a number in that range.")
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise UsageError(
            f"timeout_s = {timeout_s!r} for ranks that are threads.\n"
            f"A run needs a time limit above 0 and up to {MAX_TIMEOUT_S:.0e} seconds.\n"
            "Pass a number of seconds in that range."
        )
    is_ordered = _is_ordered() if in_rank_order is None else in_rank_order
    run = _Run(body, world_size, timeout_s=timeout_s, init=init, on_ready=on_ready, is_ordered=is_ordered)
    return run.outcomes(grace_s)


def _is_ordered() -> bool:
    order = os.environ.get(ORDER_VARIABLE, "")
    if order not in ("", "ranks"):
        raise UsageError(
            f"{ORDER_VARIABLE}={order!r} in the environment.\n"
            'The only supported value is "ranks": one rank runs at a time, from the lowest to the highest.\n'
            'Set it to "ranks", or unset it.'
        )
    return bool(order)


class _RankThread(threading.Thread):
    # Threads that a rank starts belong to it, but not the ranks of a world that it starts.
    is_rank = True

    def __init__(self, run: _Run, member: Member) -> None:
        super().__init__(name=f"rank-{member.rank}", daemon=True)
        # Opened after all threads have been started, in the order of ranks. Otherwise they would compete for Python's
        # global interpreter lock with each other and with the thread that starts them.
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
    """The end of one rank.

    Attributes:
        error: The exception that its body raised; None if the body returned.
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
        # Loading torch takes seconds, so that only a run of ranks does it.
        from torch._C._distributed_c10d import HashStore

        self._body = body
        # Gets "failed" when the first rank has failed, and "ended" when all ranks have ended.
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
        """Start the ranks, wait for their end, and return their outcomes.

        Args:
            grace_s: Time from the first failure to the return, in seconds.
        """
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
            # Also if this thread is interrupted, no rank stays in a wait of a group.
            self._world.abort(_OVER)
        if has_ended or self._wait_ended(time.monotonic() + _END_LIMIT_S, _END_LIMIT_S):
            # Without reference cycles, many worlds in one process cause no garbage collections.
            self._threads.clear()
            self._world.forget()
        errors = [None if end is None else end.error for end in ends]
        return [
            ThreadOutcome(rank, error, isinstance(error, PeerFailedError), stack)
            for rank, (error, stack) in enumerate(zip(errors, stacks, strict=True))
        ]

    def run_rank(self, member: Member) -> None:
        """Run the body of a rank, on the rank's own thread; record how it ends.

        Args:
            member: The rank.
        """
        from dist_testing.threaded import isolation

        error: BaseException | None = None
        self._world.enter(member, is_rank_thread=True)
        try:
            isolation.enter_rank()
            if self._init:
                self._make_group(member.rank)
            self._tell_ready()
            self._body(member.rank)
            # Not after a failure, because groups of other backends could wait for ranks that have ended.
            if self._world.failure is None:
                isolation.destroy_groups()
        # Every exception is an outcome: also SystemExit, and those with which pytest and unittest skip.
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
                    "Most likely the limit on processes and threads is reached (ulimit -u, or the container's).\n"
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
            # A thread that is just ending has no frame any more.
            return "\n".join([*lines, "(about to end)"])
        return "\n".join([*lines, stack_of(frame)])


_OVER = Failure(
    CollectiveTimeoutError,
    "The world of this rank has ended: its deadline has passed, or the run was interrupted.\n"
    "The outcome of this rank has been recorded already; this error only ends its thread.\n"
    "Look at the report of the case.",
    names_call=True,
)
