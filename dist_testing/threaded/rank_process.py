"""Runs all ranks of a world as threads of one process, from the fork to the exit.

The process runs all tests of a class or module. Each case gets new threads, a new store and new groups. As in a worker
pool, a case fails if it leaves anything behind in the process.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

from dist_testing.core.ground.budget import MAX_TIMEOUT_S
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import RankStart, log_name
from dist_testing.core.process.lifetime import die_with_parent
from dist_testing.core.process.rank_messages import NextCase
from dist_testing.core.process.stacks import stack_of
from dist_testing.core.rank.bootstrap import (
    FAILED_EXIT_CODE,
    RankContext,
    become_rank_process,
    next_instruction,
    own_channel,
)
from dist_testing.core.rank.capture import flush_streams, stream_on
from dist_testing.core.rank.hooks import RankServices, ServedRank
from dist_testing.core.rank.reporter import Reporter, fit_text, send_message
from dist_testing.threaded.members import OfThread, RankThread, current_member
from dist_testing.threaded.shared_process import note_rank
from dist_testing.threaded.thread_world import exit_process, fail_world, report_end, run_on_threads


def enter_together(starts: Sequence[RankStart], context: RankContext) -> NoReturn:
    """Run the ranks, one for each start, and end the process. Never returns, never raises."""
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(starts[0].fork_server_pid)
        board = PhaseBoard(starts[0].board_fd, len(starts))
        os.close(starts[0].board_fd)
        ranks = _Ranks(starts, board, context)
        ranks.run()
        flush_streams()
        for reporter in ranks.reporters:
            reporter.done()
        # Every rank has reported, so the exit code adds nothing.
        code = 0
    except BaseException:
        # A bug of this library, as in `bootstrap.enter`.
        traceback.print_exc()
    finally:
        exit_process(code)


class _Ranks:
    def __init__(self, starts: Sequence[RankStart], board: PhaseBoard, context: RankContext) -> None:
        self._starts = starts
        self._request = starts[0].request
        self._context = context
        self._channels = [own_channel(start) for start in starts]
        self.reporters = [
            Reporter(
                functools.partial(send_message, channel),
                board.write,
                rank,
                fail_world,
                fit=functools.partial(fit_text, self._request.directory, rank),
            )
            for rank, channel in enumerate(self._channels)
        ]
        self._ending = threading.Lock()
        self._running = 0
        self._last: Reporter | None = None

    @property
    def _has_failed(self) -> bool:
        return any(reporter.failed for reporter in self.reporters)

    def run(self) -> None:
        """Run cases until one fails, or until the runner has no more."""
        try:
            services = RankServices(ServedRank(self._starts[0], self.reporters[0]))
            become_rank_process(self._starts[0])
            os._exit = self._exit_as_rank
            # A process whose threads are the ranks has no rank of its own.
            for name in ("RANK", "LOCAL_RANK"):
                os.environ.pop(name, None)
            _split_output([os.path.join(self._request.directory, log_name(start.rank)) for start in self._starts])
            services.tell("start")
        except BaseException as error:
            for reporter in self.reporters:
                reporter.never_started(error)
            return
        for reporter in self.reporters:
            reporter.ready()
        body = self._request.body
        while True:
            self._run_case(body, services)
            instructions = [] if self._has_failed else list(map(next_instruction, self._channels, self.reporters))
            if self._has_failed or not isinstance(instructions[0], NextCase):
                services.tell("close")
                return
            body = instructions[0].body

    def _run_case(self, body: CaseBody, services: RankServices) -> None:
        try:
            services.tell("case_begin", body)
        except BaseException as error:
            for reporter in self.reporters:
                reporter.never_started(error)
            return
        front_ends = self._context.in_process_front_ends(body, len(self._starts))
        self._running = len(self._starts)
        self._last = None
        for reporter in self.reporters:
            reporter.phase("start")

        def run(rank: int) -> None:
            start, reporter = self._starts[rank], self.reporters[rank]
            note_rank(self._request.directory, rank)

            def run_test() -> None:
                front_ends[rank].open(start, reporter)
                front_ends[rank].run(body, reporter)
                if not reporter.failed and not reporter.is_forked:
                    reporter.phase("destroy")
                    front_ends[rank].finish()

            report_end(run_test, reporter)
            with self._ending:
                self._running -= 1
                is_last = self._running == 0
            if is_last and not self._has_failed:
                # The last rank reports after the check of the process, which a failure makes superfluous.
                self._last = reporter
            else:
                reporter.case_over()

        # The runner keeps the time; it kills this process at the case's deadline.
        ended = run_on_threads(run, len(self._starts), timeout_s=MAX_TIMEOUT_S)
        for outcome, reporter in zip(ended, self.reporters, strict=True):
            if isinstance(outcome.error, LaunchError):
                reporter.never_started(outcome.error)
        if any(outcome.stack for outcome in ended):
            # Some ranks run on after a failure. The runner knows of the failure and ends this process.
            next_instruction(self._channels[0], self.reporters[0])
        if self._last is None:
            return
        for thread in threading.enumerate():
            if isinstance(thread, RankThread):
                # The thread may still run for a moment after it has reported its end.
                thread.join()
        # From now on no rank changes the process.
        try:
            services.tell("case_end", body)
        except BaseException as error:
            self._last.ended_by(error)
        self._last.case_over()

    def _exit_as_rank(self, status: int) -> NoReturn:
        """Replace `os._exit`, which ends all ranks at once: report which rank called it."""
        member = current_member()
        if member is not None and not (reporter := self.reporters[member.rank]).is_forked:
            reporter.exited(status & 0xFF, f"os._exit({status})", stack_of(sys._getframe(1)))
        exit_process(status)


def _split_output(paths: Sequence[str]) -> None:
    """Give each rank that is a thread its own log of Python output, which includes the threads that it starts.

    The log of rank 0, the first of `paths`, also gets the output of native code, whose descriptors belong to the
    process, and of threads without a rank. Descriptors 1 and 2 must already point at this log.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    logs = [stream_on(os.open(path, flags, 0o600)) for path in paths[1:]]
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = OfThread(functools.partial(_of_rank, [stream_on(fd), *logs]))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _of_rank(streams: Sequence[io.TextIOWrapper]) -> io.TextIOWrapper:
    member = current_member()
    return streams[0 if member is None else member.rank]
