"""A rank of a world that torchrun has made: one process for all cases, a rank of a world of its own for each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

from dist_testing.backends import any_declared
from dist_testing.errors import InterruptedRunError, LaunchError
from dist_testing.joined.launcher import GIVE_UP_SIGNAL, SOCKET_KEY, peer_of
from dist_testing.joined.place import Place
from dist_testing.launch import wire
from dist_testing.outcomes import exit_name
from dist_testing.rank.board import PhaseBoard
from dist_testing.rank.bootstrap import FAILED_EXIT_CODE, RankSide, RankStart, own_channel, run_world, take_over
from dist_testing.rank.capture import flush_streams, own_streams, redirect_output
from dist_testing.rank.debugging import set_breakpoint_hook
from dist_testing.rank.environment import become
from dist_testing.rank.frames import FrameWriter
from dist_testing.rank.groups import backends_in_use
from dist_testing.rank.process import current_umask
from dist_testing.rank.reporter import Reporter
from dist_testing.rank.stacks import answer_with_stacks

__all__ = ["JoinedRank", "connect"]


class _GiveUp(BaseException):
    """Raised in a test that is to end. No Exception, so that a test does not take it for one of its own."""


def connect(place: Place) -> tuple[socket.socket, list[str]]:
    """Find rank 0 and say which rank this is.

    Returns:
        The connection, and the folders of the run.

    Raises:
        LaunchError: If rank 0 is not there.
    """
    try:
        path = place.store().get(SOCKET_KEY).decode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        # The store listens to whoever finds its port; what comes over this connection is obeyed.
        if peer_of(connection)[1] != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        wire.send(connection, {"rank": place.rank})
        answer = wire.receive(connection)
        if answer is None:
            raise ConnectionError("it has closed the connection")
    except (RuntimeError, OSError) as error:
        raise LaunchError(
            f"Rank {place.rank} of {place.size} has not found rank 0: {str(error).partition(chr(10))[0]}\n"
            "Rank 0 runs something else than this, or ended while it collected the tests.\n"
            "Start every rank by the same command, with torchrun; see what rank 0 said."
        ) from error
    return connection, answer[0]["directories"]


class JoinedRank:
    """Takes this process's part in the worlds that rank 0 asks for. Make it in the main thread, once.

    Attributes:
        is_terminated: Whether torchrun has told this process to end.
    """

    def __init__(self, connection: socket.socket, side: RankSide, as_rank: Callable[[], AbstractContextManager[None]]):
        """Be ready to be asked.

        Args:
            connection: To rank 0.
            side: What a rank has of the run.
            as_rank: Around each part: what the front door has to change in this process.
        """
        self.is_terminated = False
        self._connection = connection
        self._side = side
        self._as_rank = as_rank
        self._can_give_up = False
        self._sockets_before: frozenset[str] | None = None
        self._store_port = 0
        # A question that comes too late must not end the process, as the signal does if nobody handles it.
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        answer_with_stacks(self._nowhere)
        signal.signal(GIVE_UP_SIGNAL, self._give_up)
        signal.signal(signal.SIGTERM, self._terminate)
        # Python's handlers wait until the main thread comes back from native code; the descriptor does not.
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(read,), name="dist_testing-signals", daemon=True).start()

    def serve(self) -> int:
        """Take part in every world, until rank 0 says that there will be no more.

        Returns:
            The exit code of the run.

        Raises:
            LaunchError: If rank 0 ends without a word.
        """
        while (received := wire.receive(self._connection)) is not None:
            message, fds = received
            if message["do"] == "end":
                # When the first rank ends with a failure, torchrun stops the others. This one is about to end itself.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                return int(message["exit_code"])
            self._take_part(message, fds)
            if self.is_terminated:
                raise InterruptedRunError("torchrun has stopped the run")
        raise LaunchError(
            "Rank 0 has ended before the run was over.\n"
            "It is the runner: nobody is left to ask for a case, or to report one.\n"
            "See what rank 0 said, and how torchrun says that it ended."
        )

    def take_part_once(self, *, gives_up: bool = False) -> None:
        """Take part in the world that has just been asked for.

        Args:
            gives_up: Only say that this rank's part is over: nobody wants the world any more.
        """
        received = wire.receive(self._connection)
        assert received is not None
        message, fds = received
        if gives_up:
            for fd in fds:
                os.close(fd)
            self._say_over(FAILED_EXIT_CODE)
        else:
            self._take_part(message, fds)

    def _take_part(self, message: dict[str, object], fds: list[int]) -> None:
        rank = int(str(message.pop("rank")))
        request = wire.WorldRequest.from_message(message)
        channel_fd, stacks_fd, board_fd, *stores = fds
        start = RankStart(
            request, rank, channel_fd, stacks_fd, board_fd, stores[0] if stores else None, template_pid=os.getpid()
        )
        channel = own_channel(start)
        board = PhaseBoard(board_fd, request.size)
        code = FAILED_EXIT_CODE
        try:
            reporter = Reporter(FrameWriter(channel), board, rank)
            with _in_place_of_runner(start, self._nowhere), self._as_rank(), self._giving_up(request.store_port):
                self._run(start, reporter, channel)
            if not reporter.failed:
                code = 0
        except _GiveUp:
            # It came too late to meet a test.
            pass
        finally:
            channel.close()
            board.close()
            for fd in (board_fd, stacks_fd):
                os.close(fd)
            self._say_over(code)

    def _run(self, start: RankStart, reporter: Reporter, channel: socket.socket) -> None:
        try:
            door = self._side.door(start.request.body)
        except BaseException as error:
            reporter.never_started(error)
            return
        run_world(start, reporter, channel, door)
        del door
        flush_streams()
        _end_groups(failed=reporter.failed)
        reporter.done()
        if not reporter.failed and start.store_fd is not None:
            # The others may still need the store that lives in this process.
            wire.receive(channel)

    def _say_over(self, code: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self._connection, {"exit_code": code})

    @contextlib.contextmanager
    def _giving_up(self, store_port: int) -> Iterator[None]:
        """Here, and nowhere else, the rank can be made to give up."""
        self._store_port = store_port
        self._sockets_before = _sockets()
        self._can_give_up = True
        try:
            yield
        finally:
            self._can_give_up = False
            self._sockets_before = None

    def _give_up(self, number: int, _: FrameType | None) -> None:
        if self._can_give_up:
            # Once: what the test does about it must not be stopped, too.
            self._can_give_up = False
            raise _GiveUp("the runner has stopped this rank's part in the case")

    def _terminate(self, number: int, _: FrameType | None) -> None:
        first, self.is_terminated = not self.is_terminated, True
        if self._sockets_before is None and first:
            raise InterruptedRunError(f"this rank got {exit_name(-number)}")

    def _listen(self, read: int) -> None:
        """Get the main thread out of native code: every wait there is for a connection."""
        while numbers := os.read(read, 64):
            if not {GIVE_UP_SIGNAL, int(signal.SIGTERM)}.isdisjoint(numbers):
                before = self._sockets_before
                if before is not None:
                    _cut(_sockets() - before, self._store_port)


@contextlib.contextmanager
def _in_place_of_runner(start: RankStart, nowhere: int) -> Iterator[None]:
    """Environment, working directory, output and stacks are a rank's; afterwards, what they were."""
    flush_streams()
    env, cwd, umask = dict(os.environ), os.getcwd(), current_umask()
    streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
    streams += [(f"__{name}__", getattr(sys, f"__{name}__")) for name, _ in streams]
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    undo_hook = set_breakpoint_hook(start.rank, None)
    try:
        redirect_output(os.path.join(start.request.directory, f"rank-{start.rank}.log"))
        own_streams()
        answer_with_stacks(start.stacks_fd)
        take_over(start.request)
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(start.rank)
        yield
    finally:
        undo_hook()
        answer_with_stacks(nowhere)
        flush_streams()
        for fd, copy in enumerate(saved):
            os.dup2(copy, fd)
            os.close(copy)
        for name, stream in streams:
            setattr(sys, name, stream)
        become(env)
        tempfile.tempdir = None
        os.umask(umask)
        os.chdir(cwd)


def _end_groups(*, failed: bool) -> None:
    """End the groups that the case has made; after a failure without the others, who may not come."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    if failed and any(any_declared(name, lambda backend: backend.aborts) for name in backends_in_use()):
        torch.distributed.distributed_c10d._abort_process_group()
    else:
        torch.distributed.destroy_process_group()


def _sockets() -> frozenset[str]:
    """The descriptors that are sockets, each with the kernel's name for what it is."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                found.add(f"{fd} {name}")
    return frozenset(found)


def _cut(sockets: frozenset[str], store_port: int) -> None:
    """End these connections, if they are to other processes by TCP.

    Servers stay: the world's store, which this process may serve at `store_port`, ends the whole process if one of its
    connections is taken from it.
    """
    for entry in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.partition(" ")[0]))) as copy:
            is_server = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and not is_server and copy.getsockname()[1] != store_port:
                copy.shutdown(socket.SHUT_RDWR)
