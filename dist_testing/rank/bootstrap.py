"""From fork to the test's own code, and out again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from dist_testing.launch.wire import WorldRequest
from dist_testing.rank.capture import redirect_output
from dist_testing.rank.environment import become, torchrun_env
from dist_testing.rank.frames import FrameWriter
from dist_testing.rank.process import die_with_parent
from dist_testing.rank.reporter import Reporter
from dist_testing.rank.stacks import answer_with_stacks

__all__ = ["FAILED_EXIT_CODE", "Body", "RankStart", "Resolver", "enter"]

# torch's code for "this rank's test failed" (MultiProcessTestCase.TEST_ERROR_EXIT_CODE).
FAILED_EXIT_CODE = 10


@dataclass(frozen=True, slots=True)
class RankStart:
    """What one rank is started with.

    Attributes:
        request: What all ranks of the world share.
        rank: Which of them this is.
        channel_fd: The rank's end of its frame channel.
        stacks_fd: Where its stacks go when they are asked for.
        store_fd: The listening socket of the world's store, on rank 0 only.
        template_pid: The parent, with which the rank dies.
    """

    request: WorldRequest
    rank: int
    channel_fd: int
    stacks_fd: int
    store_fd: int | None
    template_pid: int


class Body(Protocol):
    """What a front door runs on a rank. An exception out of either method is the rank's outcome."""

    def run(self, start: RankStart, reporter: Reporter) -> None:
        """Run the test and report how it went: passed, skipped, or worse."""

    def finish(self) -> None:
        """Called when every rank has ended its test well; a failed rank leaves without."""


# Runs on the rank: finds what a request's `body` names.
Resolver = Callable[[dict[str, Any]], Body]


def enter(start: RankStart, resolve: Resolver) -> NoReturn:
    """Run the rank and end the process. Never returns, never raises.

    The process ends by `os._exit`: finalisers and exit handlers were registered in the runner, for the runner.
    """
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(start.template_pid)
        # The lowest free number: the kernel closes a dying process's descriptors in order, so the runner sees this
        # end before any peer can see a closed gloo connection.
        channel = socket.socket(fileno=os.dup(start.channel_fd))
        os.close(start.channel_fd)
        reporter = Reporter(FrameWriter(channel))
        _run(start, reporter, resolve)
        for stream in (sys.stdout, sys.stderr):
            # A test may have closed or replaced it; then there is nothing left to save.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        reporter.done()
        if not reporter.failed:
            reporter.wait_for_peers()
            code = 0
    except BaseException:
        # A bug of this library. It must not look like the test's, so it goes to the rank's log, which a report quotes.
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(start: RankStart, reporter: Reporter, resolve: Resolver) -> None:
    try:
        _take_over(start)
        body = resolve(start.request.body)
    except BaseException as error:
        reporter.never_started(error)
        return
    reporter.ready()
    with _reporting(reporter):
        body.run(start, reporter)
    if not reporter.failed and reporter.wait_for_peers():
        reporter.phase("destroy")
        with _reporting(reporter):
            body.finish()


@contextlib.contextmanager
def _reporting(reporter: Reporter) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        reporter.ended_by(error)


def _take_over(start: RankStart) -> None:
    request = start.request
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    redirect_output(os.path.join(request.directory, f"rank-{start.rank}.log"))
    answer_with_stacks(start.stacks_fd)
    os.umask(request.umask)
    os.chdir(request.cwd)
    become(request.env | torchrun_env(start.rank, request.size, request.store_port))
    if request.threads and (torch := sys.modules.get("torch")) is not None:
        # The variable that says this was read when the template loaded the library; a rank has to be told.
        torch.set_num_threads(request.threads)
