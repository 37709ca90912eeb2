"""Runs a rank, from the fork to its exit."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from dist_testing.core.ground.add_ons import add_on_named, blaming
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import RankStart, WorldRequest, log_name
from dist_testing.core.process.lifetime import die_with_parent
from dist_testing.core.process.rank_messages import INSTRUCTIONS, Instruction, NextCase
from dist_testing.core.process.stacks import answer_with_stacks, print_native_stacks
from dist_testing.core.rank.capture import flush_streams, redirect_output, set_breakpoint_hook, take_terminal
from dist_testing.core.rank.hooks import RankServices, ServedRank
from dist_testing.core.rank.rank_world import finish_device_work
from dist_testing.core.rank.reporter import Reporter, RunnerClient, fit_text, send_message

# torch's code for "this rank's test failed" (MultiProcessTestCase.TEST_ERROR_EXIT_CODE).
FAILED_EXIT_CODE = 10
# $TORCHELASTIC_USE_AGENT_STORE (launcher): True tells torch that the agent of torchrun serves the store of the ranks.
# Ranks of the library do not have it.
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


class RankFrontEnd(Protocol):
    """The part of a front end that runs on a rank. An exception from a method becomes the rank's outcome."""

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Set up what all cases of the world share. Called once per rank."""

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run one case and report its outcome."""

    def finish(self) -> None:
        """Tear down what all cases share. Called after the last case, but not on a failed rank."""


class RankContext(Protocol):
    """Finds the tests of a run for its ranks. The process that makes the ranks holds it."""

    def prepare(self) -> None:
        """Do the work that all ranks need. Called once, before the ranks are forked."""

    def front_end(self, body: CaseBody) -> RankFrontEnd:
        """Return the front end of the case. Called on a rank."""

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[RankFrontEnd]:
        """Return one front end per rank for a case. Called in the process whose threads are the ranks, if any are."""
        raise RuntimeError("this context has no ranks that are threads")


def enter(start: RankStart, context: RankContext) -> NoReturn:
    """Run the rank and end the process. Never returns, never raises.

    The process ends by `os._exit`, because its finalisers and exit handlers belong to the runner.
    """
    code = FAILED_EXIT_CODE
    try:
        die_with_parent(start.fork_server_pid)
        channel = own_channel(start)
        reporter = rank_reporter(start, channel)
        os.close(start.board_fd)
        with contextlib.ExitStack() as at_end:
            _run(start, reporter, channel, context, at_end)
        flush_streams()
        reporter.done()
        if reporter.exit_code:
            code = reporter.exit_code & 0xFF
        if not reporter.failed:
            if start.store_fd is not None:
                # Other ranks may still need the store, which lives in this process.
                next_instruction(channel, reporter)
            code = 0
    except BaseException:
        # A bug of this library must not look like the test's error. The report quotes the rank's log.
        traceback.print_exc()
    finally:
        os._exit(code)


def rank_reporter(start: RankStart, channel: socket.socket) -> Reporter:
    """Return the reporter of a rank that is a process."""
    board = PhaseBoard(start.board_fd, start.request.size)
    send = functools.partial(send_message, channel)
    fit = functools.partial(fit_text, start.request.directory, start.rank)
    reporter = Reporter(send, board.write, start.rank, fit=fit)
    reporter.runner = RunnerClient(channel)
    return reporter


def own_channel(start: RankStart) -> socket.socket:
    """Return the rank's end of its channel, moved to the lowest free descriptor.

    The kernel closes a dying process's descriptors in ascending order. So the runner sees that this end is closed
    before any peer sees a closed gloo connection.
    """
    channel = socket.socket(fileno=os.dup(start.channel_fd))
    os.close(start.channel_fd)
    return channel


def next_instruction(channel: socket.socket, reporter: Reporter) -> Instruction | None:
    """Wait for the runner's next instruction; None if it is gone, or has sent unreadable bytes, which are reported."""
    try:
        received = wire.receive(channel, INSTRUCTIONS)
    except MessageError as error:
        # The next case cannot begin on this rank. The test is not at fault.
        reporter.never_started(error)
        return None
    return None if received is None else received[0]


def _run(
    start: RankStart, reporter: Reporter, channel: socket.socket, context: RankContext, at_end: contextlib.ExitStack
) -> None:
    """Run the cases of a world, and report every outcome to the runner."""
    try:
        services = RankServices(ServedRank(start, reporter))
        at_end.callback(services.tell, "close")
        enter_place(start)
        become_rank_process(start)
        services.tell("start")
        os.environ.update(start.request.layout.rank_env(start.rank))
        front_end = context.front_end(start.request.body)
    except BaseException as error:
        reporter.never_started(error)
        return
    reporter.ready()
    with _reporting(reporter):
        front_end.open(start, reporter)
        body = start.request.body
        while True:
            reporter.begin_case()
            with _reporting(reporter):
                services.tell("case_begin", body)
                front_end.run(body, reporter)
                if not (reporter.is_forked or reporter.failed):
                    finish_device_work()
                    # Not after a skip: it ends the world, and ranks that are done may have closed their connections.
                    if not reporter.has_reported:
                        services.tell("case_end", body)
            if reporter.is_forked:
                os._exit(FAILED_EXIT_CODE if reporter.failed else 0)
            reporter.case_over()
            if reporter.failed or (instruction := next_instruction(channel, reporter)) is None:
                return
            if not isinstance(instruction, NextCase):
                break
            body = instruction.body
        reporter.phase("destroy")
        front_end.finish()


@contextlib.contextmanager
def _reporting(reporter: Reporter) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        reporter.ended_by(error)


def world_env(env: Mapping[str, str], layout: Layout, store_port: int) -> dict[str, str]:
    """Return `env` with the variables that torchrun sets, except those of `Layout.rank_env`.

    With `store_port` 0 the world has no store, and no MASTER_ADDR.
    """
    result = {**env, **layout.world_env()}
    if store_port:
        # $MASTER_ADDR, $MASTER_PORT, $TORCHELASTIC_RESTART_COUNT (library): address and port of the world's store; 0
        # restarts. A unittest class whose tests make their own store does not have them.
        result |= {
            "MASTER_ADDR": layout.address,
            "MASTER_PORT": str(store_port),
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        # Under torchrun the runner has it. With it, rank 0 would serve no store at a port that a test has chosen, and
        # all ranks would wait for one. With env://, rank 0 finds the store of the world in its own process.
        result.pop(_AGENT_STORE, None)
    return result


def take_over(request: WorldRequest) -> None:
    """Take over the directory, environment, umask and number of threads of a request for a world.

    The fork server does this before it forks the ranks, so that no rank has to do it and pay for copied pages. An
    OSError says that the working directory is gone.
    """
    # Python caches the first answer, which was the runner's.
    tempfile.tempdir = None
    os.umask(request.umask)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(world_env(request.env, request.layout, request.store_port))
    if request.threads and (torch := sys.modules.get("torch")) is not None:
        # torch read the environment variable when it was loaded; now only a call changes the number.
        torch.set_num_threads(request.threads)


def enter_place(start: RankStart) -> None:
    """Move this process into the place of its rank, if an add-on has made one. It must have one thread."""
    if start.place_fds:
        add_on = add_on_named(start.request.place, f"rank {start.rank}")
        with blaming(add_on.name, "the entry into its place"):
            add_on.load("place").enter(start)
        # The kernel forgets the parent's death signal when a process joins a user namespace.
        die_with_parent(start.fork_server_pid)


def become_rank_process(start: RankStart) -> None:
    """Give this process a rank's signal handlers, output, breakpoint hook and stack dumps."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Blocked in the fork server.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGQUIT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    redirect_output(os.path.join(start.request.directory, log_name(start.rank)))
    set_breakpoint_hook(start.rank, start.request.debug_rank)
    if start.rank == start.request.debug_rank:
        take_terminal()
    answer_with_stacks(start.stacks_fd)
    print_native_stacks()
    if (torch := sys.modules.get("torch")) is not None:
        # A pool of native threads does not survive the fork. torch replaces it at its first use, without a lock: a
        # first use by several threads at once would abort the process.
        torch.set_num_threads(torch.get_num_threads())
