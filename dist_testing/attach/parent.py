"""A launched process of another rank than 0: the parent of its rank's fork server, until rank 0 ends the run."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dist_testing.attach.absent import LOOK_S, ended_ranks
from dist_testing.attach.bridge import FarEnd
from dist_testing.attach.collected import COLLECTED_KEY, digest, first_difference
from dist_testing.attach.launcher import HOME_KEY, TOKEN_VARIABLE
from dist_testing.attach.line import Line, connect
from dist_testing.attach.messages import ENDINGS, JOININGS, PLACES, Ending, Home, Joining, Refused, user_of
from dist_testing.attach.rank_info import ATTACH_LIMIT_S, RankInfo
from dist_testing.attach.waiting import readable, saying_who_is_missing
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.errors import InterruptedRunError, LaunchError, MessageError
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process import wire
from dist_testing.core.process.lifetime import check_platform
from dist_testing.core.process.messages import Loader
from dist_testing.core.rank.bootstrap import RankContext

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# After a launcher's signal to end, rank 0, which has got it, too, has so long to end the run in order. torchrun and
# Slurm kill after 30 s. Seconds.
_ORDERLY_END_S = 20.0
# Rank 0 tells first that it waits for others.
_FIRST_LINE_S = 30.0


class _Connection:
    """The connection to the runner on the same node."""

    pause_s = None

    def __init__(self, path: str, joining: Joining, control: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self.fileno = self._socket.fileno
        self._socket.connect(path)
        # Any process can write into the store, and this process obeys the messages of the connection.
        if user_of(self._socket) != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        wire.send(self._socket, JOININGS, joining, [control])

    def poll(self) -> Ending | None:
        """Return the runner's last message.

        Raises:
            LaunchError: If the runner has ended without one.
        """
        received = wire.receive(self._socket, ENDINGS)
        if received is None:
            raise LaunchError(
                "Rank 0 has ended before the run was over.\n"
                "It is the runner: without it no case can be started or reported.\n"
                "See the output of rank 0, and the launcher's message about its end."
            )
        return received[0]


def serve(rank_info: RankInfo, context: RankContext, loader: Loader, collected: Sequence[str]) -> int:
    """Make this process's rank in every world that rank 0 asks for. Return the exit code of the run.

    Raises:
        LaunchError: If rank 0 cannot be reached, or ends without a message.
        InterruptedRunError: If the launcher has stopped this process.
    """
    check_platform()
    with contextlib.ExitStack() as closing:
        try:
            store, home = _find_rank_0(rank_info)
            joining = Joining(rank_info.rank, _difference(rank_info.rank, collected, store, home))
            is_here = home.node == rank_info.node_key
            # The folders of rank 0 stay: if this process dies, the runner still reads them.
            own: list[str] = []
            folder = os.path.dirname(home.path) if is_here else _folder_of_node(store, rank_info, home, closing, own)
            # The process of rank 0 has it loaded, too: each rank needs it.
            add_ons()
            # Before this process connects, so that no other one holds the connection when this one has ended.
            server = ForkServerLauncher(RunContext(context, loader, own, folder))
            closing.callback(server.close)
            if is_here:
                link: _Connection | FarEnd = _Connection(home.path, joining, server.fileno())
            else:
                connection, shift_s = connect(home.address, home.port, home.token or os.environ.get(TOKEN_VARIABLE, ""))
                wire.send(connection, JOININGS, joining)
                control = socket.socket(fileno=os.dup(server.fileno()))
                link = FarEnd(Line(connection), rank_info.rank, control, shift_s, Path(folder))
        except (MessageError, RuntimeError, OSError, ValueError) as error:
            raise LaunchError(
                f"Rank {rank_info.rank} of {rank_info.size} has not found rank 0: {str(error).partition(chr(10))[0]}\n"
                "Rank 0 runs another program, or ended while it collected the tests.\n"
                f"Start every rank by the same command, with {rank_info.launcher}; see the output of rank 0."
            ) from error
        try:
            with _ending_in_order() as signalled:
                ending = _wait_for_end(link, signalled, rank_info.launcher)
        except LaunchError:
            # A launcher that stops the ranks because one has died stops rank 0, too, which still reads the logs there.
            for directory in home.directories:
                # Rank 0 may have been killed before it could.
                shutil.rmtree(directory, ignore_errors=True)
            raise
        if isinstance(ending, Refused):
            raise LaunchError(ending.text)
        return ending.exit_code


@contextlib.contextmanager
def _ending_in_order() -> Iterator[int]:
    """In this block, a signal to end makes a descriptor readable, which is yielded."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: os.write(write, b"\0"))
    try:
        yield read
    finally:
        # This process is about to end itself. When the first one ends with a failure, launchers stop the others.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(read)
        os.close(write)


def _wait_for_end(link: _Connection | FarEnd, signalled: int, launcher: str) -> Ending:
    """Wait for the runner's last message; after a signal to end, for at most 20 s."""
    stopped = InterruptedRunError(f"{launcher} has stopped the run")
    end_s = math.inf
    while time.monotonic() < end_s:
        wanted = [link.fileno(), *([signalled] if end_s == math.inf else [])]
        ready = readable(wanted, min(link.pause_s or math.inf, end_s - time.monotonic()))
        if signalled in ready:
            end_s = time.monotonic() + _ORDERLY_END_S
        if ready == [signalled]:
            continue
        try:
            if (ending := link.poll() if link.fileno() in ready or link.pause_s else None) is not None:
                return ending
        except MessageError as error:
            raise LaunchError(str(error)) from error
        except LaunchError as error:
            # The launcher stops rank 0, too.
            raise (error if end_s == math.inf else stopped) from None
    raise stopped


def _find_rank_0(rank_info: RankInfo) -> tuple[Store, Home]:
    """Wait until rank 0 has told where it is.

    Raises:
        OSError: If rank 0 has ended.
        RuntimeError: If the store cannot be reached.
    """

    def tell(line: str) -> None:
        print(f"dist_testing: rank {rank_info.rank}: {line}", file=sys.__stderr__, flush=True)

    latest_s = time.monotonic() + ATTACH_LIMIT_S
    with saying_who_is_missing(rank_info, lambda: [0], tell, _FIRST_LINE_S):
        store = rank_info.store()
        # A store that cannot be reached raises its error here.
        while not store.check([HOME_KEY]):
            if ended_ranks(rank_info, [0]):
                raise ConnectionError("it has ended before this rank could connect")
            left_s = latest_s - time.monotonic()
            if left_s <= 0:
                raise ConnectionError(f"it did not come within {ATTACH_LIMIT_S:.0f} s")
            # The wait ends with an error if the key is still missing.
            with contextlib.suppress(RuntimeError):
                store.wait([HOME_KEY], timedelta(seconds=min(left_s, LOOK_S)))
    return store, PLACES.from_wire(store.get(HOME_KEY))


def _difference(rank: int, collected: Sequence[str], store: Store, home: Home) -> str:
    if home.collected == digest(collected):
        return ""
    return first_difference(rank, collected, store.get(COLLECTED_KEY).decode())


def _folder_of_node(
    store: Store, rank_info: RankInfo, home: Home, closing: contextlib.ExitStack, paths: list[str]
) -> str:
    """Return the folder that the ranks of this other node share. The process that is the first to ask makes it.

    Adds what this one has made to `paths`.
    """
    if not home.address:
        raise LaunchError(
            f"Rank {rank_info.rank} of {rank_info.size} is not on the node of rank 0, which expects all ranks there.\n"
            f"{rank_info.launcher}'s variables name no other node; set by hand, they lack LOCAL_WORLD_SIZE.\n"
            "Set LOCAL_WORLD_SIZE to the number of ranks of each node."
        )
    key = f"folder/{rank_info.node_key}"
    if store.add(f"{key}/count", 1) == 1:
        own = RunDirectory(os.environ)
        closing.callback(own.remove)
        paths += own.all_paths
        store.set(key, str(own.short))
    return str(store.get(key).decode())
