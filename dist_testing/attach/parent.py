"""A launched process of another rank than 0: the parent of its rank's fork server, until rank 0 ends the run."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dist_testing.attach.attach_messages import MESSAGES, EndRun, Home, Joining, connect
from dist_testing.attach.bridge import FarEnd, lost_runner
from dist_testing.attach.launcher import HOME_KEY, TOKEN_VARIABLE
from dist_testing.attach.rank_info import NEXT_LINE_S, RankInfo
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.rank.bootstrap import RankContext

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# struct ucred of SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


def serve(rank_info: RankInfo, context: RankContext, loader: Loader, collected: Sequence[str]) -> int:
    """Make this process's rank in every world that rank 0 asks for. Return the exit code of the run.

    A LaunchError says that rank 0 cannot be reached, or has ended without a message.
    """
    rank = rank_info.rank
    with contextlib.ExitStack() as closing:
        try:
            tell = functools.partial(print, f"dist_testing: rank {rank}:", file=sys.__stderr__, flush=True)
            # Rank 0 tells first that it waits for others.
            with rank_info.saying_who_is_missing(lambda: [0], tell, NEXT_LINE_S):
                store = rank_info.store()
                home = MESSAGES.from_wire(store.get(HOME_KEY))
            assert isinstance(home, Home)
            is_here = home.node == rank_info.node_key
            # The folders of rank 0 stay: if this process dies, the runner still reads them.
            own: list[str] = []
            folder = os.path.dirname(home.path) if is_here else _folder_of_node(store, rank_info, home, closing, own)
            # The process of rank 0 has it loaded, too: each rank needs it.
            add_ons()
            # Before this process connects, so that no other one holds the connection when this one has ended.
            server = ForkServerLauncher(RunContext(context, loader, own, folder))
            closing.callback(server.close)
            joining = Joining(rank, home.difference(rank, set(collected)), "" if is_here else socket.gethostname())
            if is_here:
                connection = closing.enter_context(_connect_here(home.path))
                wire.send(connection, MESSAGES, joining, [server.fileno()])
            else:
                # The store may be open to others, so a token of the environment comes first.
                connection, shift_s = connect(home.address, home.port, os.environ.get(TOKEN_VARIABLE) or home.token)
                wire.send(connection, MESSAGES, joining)
                end = FarEnd(connection, rank, server, shift_s, Path(folder))
                closing.callback(end.close)
        except (MessageError, RuntimeError, OSError) as error:
            raise LaunchError(
                f"Rank {rank} of {rank_info.size} has not found rank 0: {str(error).partition(chr(10))[0]}\n"
                "Rank 0 runs another program, or ended while it collected the tests.\n"
                f"Start every rank by the same command, with {rank_info.launcher}; see the output of rank 0."
            ) from error
        # A launcher that stops the ranks stops rank 0, too, which then ends the run in order. If rank 0 does not, the
        # launcher kills this process. When the first process ends with a failure, launchers stop the others.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        ending = _wait_here(connection) if is_here else end.serve()
        if ending.error:
            raise LaunchError(ending.error)
        return ending.exit_code


def _connect_here(path: str) -> socket.socket:
    """Connect to the runner on the same node."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    # Any process can write into the store, and this process obeys the messages of the connection.
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[1] != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return connection


def _wait_here(connection: socket.socket) -> EndRun:
    """Wait for the last message of the runner on the same node; an error if the runner has ended without one."""
    with contextlib.suppress(MessageError):
        received = wire.receive(connection, MESSAGES)
        if received is not None and isinstance(received[0], EndRun):
            return received[0]
    raise lost_runner("it has ended")


def _folder_of_node(
    store: Store, rank_info: RankInfo, home: Home, closing: contextlib.ExitStack, paths: list[str]
) -> str:
    """Return the folder that the ranks of this other node share. The process that is the first to ask makes it.

    Adds what this one has made to `paths`.
    """
    if not home.address:
        raise LaunchError(
            f"Rank {rank_info.rank} of {rank_info.size} is not on the node of rank 0, which expects all ranks there.\n"
            f"{rank_info.launcher}'s variables name no other node. Variables set by hand may lack LOCAL_WORLD_SIZE.\n"
            "Set LOCAL_WORLD_SIZE to the number of ranks of each node."
        )
    key = f"folder/{rank_info.node_key}"
    if store.add(f"{key}/count", 1) == 1:
        own = RunDirectory(os.environ)
        closing.callback(own.remove)
        paths += own.all_paths
        store.set(key, str(own.short))
    return str(store.get(key).decode())
