"""Runs a function on threads that are the ranks of one world."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import NamedTuple

from dist_testing.core.ground.errors import CollectiveTimeoutError, LaunchError, UsageError
from dist_testing.core.process.stacks import stack_of
from dist_testing.core.rank.bootstrap import FAILED_EXIT_CODE
from dist_testing.core.rank.reporter import Reporter
from dist_testing.threaded import isolation
from dist_testing.threaded.members import Member, RankThread, ThreadWorld, current_member
from dist_testing.threaded.operation import Failure

# Time from the first failure to the verdict, for ranks that are in no wait of a group, so that nothing can wake them.
# Longer than for processes, because a thread cannot be stopped, only left behind. Seconds.
_PEER_GRACE_S = 2.0
# Time for threads that the deadline has woken, so that they end before the next case begins. Seconds.
_END_LIMIT_S = 1.0
# Longest single wait. Python handles a signal that arrives just before a wait only when the wait ends. Shorter than the
# grace, because a failure ends no wait. Seconds.
_LONGEST_WAIT_S = 1.0
# $DIST_TESTING_THREAD_ORDER (user): for ranks that are threads; ranks: one rank runs at a time, in the order of their
# numbers (default: all ranks run at once).
ORDER_VARIABLE = "DIST_TESTING_THREAD_ORDER"
# A process whose threads are the ranks gives test code a replacement: see `rank_process`.
exit_process = os._exit


# unittest omits the frames of modules with this mark from its tracebacks.
__unittest = True


class ThreadOutcome(NamedTuple):
    """How one rank ended."""

    # The exception that its body raised, with its traceback; None if the body returned, or has not ended.
    error: BaseException | None
    # For a rank that had not ended when the run was over, its waits in groups and the stack of its thread; else "".
    stack: str


def fail_world(error: BaseException) -> None:
    """Tell the other ranks that the calling thread's rank, if it has one, has failed, before the rank ends.

    For callers that catch a body's errors themselves; `run_on_threads` does the same for an error that the body raises.
    """
    member = current_member()
    if member is not None:
        member.world.fail(member, error)


def report_end(body: Callable[[], None], reporter: Reporter) -> None:
    """Run the body of a rank on its thread, and report an error that it raises.

    Ends a child that the test has forked, and that has reached the end of the test.
    """
    try:
        body()
    except BaseException as error:
        reporter.ended_by(_without_our_frames(error))
    if reporter.is_forked:
        exit_process(FAILED_EXIT_CODE if reporter.failed else 0)


def _without_our_frames(error: BaseException) -> BaseException:
    """Return the error with a traceback that begins in the test, if it reaches the test."""
    traceback = error.__traceback__
    while traceback is not None and "__unittest" in traceback.tb_frame.f_globals:
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)


def run_on_threads(body: Callable[[int], None], world_size: int, *, timeout_s: float) -> list[ThreadOutcome]:
    """Run `body(rank)` on threads that are the ranks of one world, each with its own `torch.distributed` state.

    The ranks begin without a default group. The first rank that raises wakes the ranks that wait in a group. The call
    returns when all ranks have ended, at the deadline, or 2 seconds after the first failure, whichever is first. A
    thread that has not ended by then is left behind: it is a daemon thread, and keeps its world to itself. Any
    exception of the body, `SystemExit` included, becomes the rank's outcome; there is one per rank, in their order.
    """
    order = os.environ.get(ORDER_VARIABLE, "")
    if order not in ("", "ranks"):
        raise UsageError(
            f"{ORDER_VARIABLE}={order!r} in the environment.\n"
            'The only supported value is "ranks": one rank runs at a time, from the lowest to the highest.\n'
            'Set it to "ranks", or unset it.'
        )
    return _Run(body, ThreadWorld(world_size, in_rank_order=order == "ranks")).outcomes(timeout_s)


class _Run:
    """One call of `run_on_threads`."""

    def __init__(self, body: Callable[[int], None], world: ThreadWorld) -> None:
        self._body = body
        self._world = world
        self._threads = [
            RankThread(target=self._run_rank, args=(member,), name=f"rank-{member.rank}", daemon=True)
            for member in world.members
        ]
        # The exception that the body of each rank has raised, or None, when the rank has ended.
        self._ends = [Future[BaseException | None]() for _ in world.members]

    def outcomes(self, timeout_s: float) -> list[ThreadOutcome]:
        """Start the ranks, wait for their end, and return their outcomes."""
        deadline_s = time.monotonic() + timeout_s
        for member in self._world.members:
            isolation.hold()
            self._world.add_thread(member)
        try:
            self._start()
            self._wait_ended(deadline_s)
            outcomes = [
                ThreadOutcome(end.result(), "") if end.done() else ThreadOutcome(None, self._stack(rank))
                for rank, end in enumerate(self._ends)
            ]
        finally:
            # Also if this thread is interrupted, no rank stays in a wait of a group. Nor does one format its traceback
            # while pytest does: the parser of Python 3.11 raises a SystemError if two threads use it.
            self._world.abort(_OVER)
            late = wait(self._ends, _END_LIMIT_S).not_done
        if not late:
            # The world is freed at once: without cycles, many worlds in one process cause no garbage collections.
            self._threads.clear()
            self._world.members, self._world.groups = (), {}
        return outcomes

    def _run_rank(self, member: Member) -> None:
        error: BaseException | None = None
        self._world.enter(member)
        try:
            with isolation.rank_state(member):
                self._body(member.rank)
        # Every exception is an outcome: also SystemExit, and those with which pytest and unittest skip.
        except BaseException as raised:
            error = raised
        self._end(member, error)

    def _start(self) -> None:
        started = 0
        reason = "it was interrupted"
        try:
            for thread in self._threads:
                # An interruption may come after the start, and a thread that runs reports its own end.
                started += 1
                thread.start()
        except RuntimeError as error:
            started -= 1
            reason = str(error)
        finally:
            for member in self._world.members[started:]:
                failure = LaunchError(
                    f"The thread of rank {member.rank} of {self._world.size} cannot be started: {reason}.\n"
                    "Most likely the limit on processes and threads is reached (ulimit -u, or the container's).\n"
                    "Use a smaller world, or raise the limit."
                )
                self._end(member, failure)

    def _end(self, member: Member, error: BaseException | None) -> None:
        if error is not None:
            self._world.fail(member, error)
        self._world.leave(member, is_rank_thread=True)
        isolation.release()
        self._ends[member.rank].set_result(error)

    def _wait_ended(self, deadline_s: float) -> None:
        """Wait until all ranks have ended, until the deadline, or until the grace after a failure is over."""
        while (left_s := min(deadline_s, self._world.failed_s + _PEER_GRACE_S) - time.monotonic()) > 0:
            if not wait(self._ends, min(left_s, _LONGEST_WAIT_S)).not_done:
                return

    def _stack(self, rank: int) -> str:
        frame = sys._current_frames().get(self._threads[rank].ident or 0)
        # A thread that is just ending has no frame any more.
        stack = "(about to end)" if frame is None else stack_of(frame)
        return "\n".join([*self._world.describe_waits_of(rank), stack])


_OVER = Failure(
    CollectiveTimeoutError,
    "The world of this rank has ended: its deadline has passed, or the run was interrupted.\n"
    "The outcome of this rank has been recorded already; this error only ends its thread.\n"
    "Look at the report of the case.",
    names_call=True,
)
