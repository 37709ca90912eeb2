"""From fork to the test's own code, and out again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from dist_testing.process import wire
from dist_testing.process.board import PhaseBoard
from dist_testing.process.frames import FrameWriter
from dist_testing.process.lifetime import die_with_parent
from dist_testing.process.stacks import answer_with_stacks
from dist_testing.rank.capture import flush_streams, redirect_output
from dist_testing.rank.coverage import RankCoverage
from dist_testing.rank.debugging import set_breakpoint_hook, take_terminal
from dist_testing.rank.device import finish_device_work
from dist_testing.rank.environment import become, torchrun_env
from dist_testing.rank.ledger import answer_with_ledger
from dist_testing.rank.reporter import Reporter
from dist_testing.rank.state import RankState

__all__ = [
    "FAILED_EXIT_CODE",
    "RankContext",
    "RankFrontEnd",
    "RankStart",
    "become_rank_process",
    "enter",
    "own_channel",
    "run_world",
    "take_over",
]

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
        board_fd: The board on which it writes what it is doing.
        store_fd: The listening socket of the world's store, on rank 0 only.
        fork_server_pid: The parent, with which the rank dies.
        lease_fds: Held open, and no more: the world's GPUs are its own until the last of its ranks has ended.
    """

    request: wire.WorldRequest
    rank: int
    channel_fd: int
    stacks_fd: int
    board_fd: int
    store_fd: int | None
    fork_server_pid: int
    lease_fds: Sequence[int] = ()

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that are this rank's own."""
        given = (self.channel_fd, self.stacks_fd, self.board_fd, self.store_fd, *self.lease_fds)
        return tuple(fd for fd in given if fd is not None)


class RankFrontEnd(Protocol):
    """A front door's half that lives on a rank. An exception out of any method is the rank's outcome."""

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make what the world's cases share; once per rank."""

    def run(self, body: dict[str, Any], reporter: Reporter) -> None:
        """Run one case and report how it went: passed, skipped, or worse."""

    def finish(self) -> None:
        """Called when every rank has ended its last case well; a failed rank leaves without."""


class RankContext(Protocol):
    """What a run's ranks have of it: all that the process they are made from knows."""

    def prepare(self) -> None:
        """Do what every rank would have to do; once, in the process that the ranks are forked from."""

    def door(self, body: dict[str, Any]) -> RankFrontEnd:
        """On a rank: the door that a request's body is for."""

    def thread_front_ends(self, body: dict[str, Any], world_size: int) -> Sequence[RankFrontEnd]:
        """In a process whose threads are the ranks: a door for each of them, for one case."""


def enter(start: RankStart, context: RankContext) -> NoReturn:
    """Run the rank and end the process. Never returns, never raises.

    The process ends by `os._exit`: finalisers and exit handlers were registered in the runner, for the runner.
    """
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(start.fork_server_pid)
        channel = own_channel(start)
        reporter = Reporter(FrameWriter(channel), PhaseBoard(start.board_fd, start.request.size), start.rank)
        os.close(start.board_fd)
        coverage = RankCoverage()
        _run(start, reporter, channel, context)
        coverage.save()
        flush_streams()
        reporter.done()
        if reporter.left_with:
            code = reporter.left_with & 0xFF
        if not reporter.failed:
            if start.store_fd is not None:
                # The others may still need the store that lives in this process.
                wire.receive(channel)
            code = 0
    except BaseException:
        # A bug of this library. It must not look like the test's, so it goes to the rank's log, which a report quotes.
        traceback.print_exc()
    finally:
        os._exit(code)


def own_channel(start: RankStart) -> socket.socket:
    """The rank's end of its channel, under the lowest free number.

    The kernel closes a dying process's descriptors in order, so the runner sees this end before any peer can see a
    closed gloo connection.
    """
    channel = socket.socket(fileno=os.dup(start.channel_fd))
    os.close(start.channel_fd)
    return channel


def _run(start: RankStart, reporter: Reporter, channel: socket.socket, context: RankContext) -> None:
    try:
        become_rank_process(start)
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(start.rank)
        door = context.door(start.request.body)
    except BaseException as error:
        reporter.never_started(error)
        return
    run_world(start, reporter, channel, door)


def run_world(start: RankStart, reporter: Reporter, channel: socket.socket, door: RankFrontEnd) -> None:
    """Run the cases of a world, in a process that is its rank already. Whatever happens is told to the runner."""
    reporter.ready()
    with _reporting(reporter):
        door.open(start, reporter)
        _run_cases(start, reporter, channel, door)


def _run_cases(start: RankStart, reporter: Reporter, channel: socket.socket, door: RankFrontEnd) -> None:
    state = RankState.now() if start.request.pool else None
    body = start.request.body
    while True:
        with _reporting(reporter):
            door.run(body, reporter)
            if not (reporter.is_forked or reporter.failed):
                finish_device_work()
                if state is not None:
                    if not body.get("keeps_state", False):
                        state.verify(keeps_groups=body.get("keeps_groups", False))
                    state.rewind_generators()
        if reporter.is_forked:
            os._exit(FAILED_EXIT_CODE if reporter.failed else 0)
        reporter.case_over()
        if reporter.failed or (instruction := wire.receive(channel)) is None:
            return
        message, _ = instruction
        if message["do"] == "finish":
            break
        body = message["body"]
    reporter.phase("destroy")
    door.finish()


@contextlib.contextmanager
def _reporting(reporter: Reporter) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        reporter.ended_by(error)


def take_over(request: wire.WorldRequest) -> None:
    """Make this process what the runner is at the moment of the request, and give it what all ranks have in common.

    In the template, before it forks the ranks: what is done once there need not be done, and paid for in copied pages,
    by each of them.

    Raises:
        OSError: If the working directory is gone.
    """
    # Python keeps the first answer, which was the runner's.
    tempfile.tempdir = None
    os.umask(request.umask)
    os.chdir(request.cwd)
    become(request.env | torchrun_env(request.size, request.store_port))
    if request.threads and (torch := sys.modules.get("torch")) is not None:
        # The variable that says this was read when the library was loaded; from then on it has to be told.
        torch.set_num_threads(request.threads)


def become_rank_process(start: RankStart) -> None:
    """Give this process a rank's signals, output and way to tell its stacks."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    redirect_output(os.path.join(start.request.directory, f"rank-{start.rank}.log"))
    set_breakpoint_hook(start.rank, start.request.debug_rank)
    if start.rank == start.request.debug_rank:
        take_terminal()
    answer_with_stacks(start.stacks_fd)
    if not start.request.together:
        # Threads find out themselves who waits for whom.
        answer_with_ledger(start.stacks_fd)
    if (torch := sys.modules.get("torch")) is not None:
        # A pool of native threads does not survive the fork. torch replaces it when a thread first asks for it, and has
        # no lock around that; several at once find none and abort the process.
        torch.set_num_threads(torch.get_num_threads())
