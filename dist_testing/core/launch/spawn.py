"""Makes ranks that are fresh interpreters, for isolation "spawn": a forked process replaces itself by one."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import NoReturn

from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.launch.fresh import command, load_tests, order_for, with_imports
from dist_testing.core.process.files import log_name
from dist_testing.core.process.launcher_messages import FreshRank, Loader, RankStart
from dist_testing.core.process.lifetime import die_with_parent
from dist_testing.core.process.refusal import refusal
from dist_testing.core.process.stacks import answer_with_stacks
from dist_testing.core.rank.bootstrap import (
    FAILED_EXIT_CODE,
    RankContext,
    enter,
    enter_place,
    rank_reporter,
    take_over,
    world_env,
)
from dist_testing.core.rank.capture import own_streams, redirect_output


def become_rank(start: RankStart, loader: Loader) -> NoReturn:
    """Replace this process, which was just forked, by a fresh interpreter that is the rank."""
    die_with_parent(start.fork_server_pid)
    request = start.request
    rank_env = request.layout.rank_env(start.rank)
    try:
        enter_place(start)
        start = dataclasses.replace(start, place_fds=())
        arguments, descriptor = command(__name__, FreshRank(start, with_imports(loader)))
        for fd in (*start.fds, descriptor):
            os.set_inheritable(fd, True)
        # Complete from the start: some libraries read their variables when they are imported.
        os.execve(arguments[0], arguments, {**world_env(request.env, request.layout, request.store_port), **rank_env})
    except OSError as error:
        text = f"Rank {start.rank} cannot become a fresh interpreter: {refusal(error)}"
        rank_reporter(start, socket.socket(fileno=start.channel_fd)).never_started(LaunchError(text))
    finally:
        os._exit(FAILED_EXIT_CODE)


def main(text: str) -> NoReturn:
    """Be the rank, in the interpreter that `become_rank` starts."""
    order = order_for(FreshRank, text)
    start = order.start
    # The output of imports belongs to the rank, too.
    own_streams()
    redirect_output(os.path.join(start.request.directory, log_name(start.rank)))
    die_with_parent(start.fork_server_pid)
    for fd in start.fds:
        os.set_inheritable(fd, False)
    # Imports can hang, too.
    answer_with_stacks(start.stacks_fd)
    channel = socket.socket(fileno=start.channel_fd)
    reporter = rank_reporter(start, channel)
    reporter.importing()

    def be_rank(context: RankContext) -> NoReturn:
        take_over(start.request)
        context.prepare()
        # The descriptor belongs to `enter` now.
        channel.detach()
        enter(start, context)

    try:
        load_tests(order.loader, be_rank, start.request.body.only_test)
    except BaseException as error:
        # Imports run test code: an error there is the test's failure, and not the machine's.
        reporter.phase("import")
        reporter.raised(error)
    finally:
        os._exit(1)
