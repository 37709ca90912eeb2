"""An attached rank: one process for all cases, which is a rank of a new world for each case."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

from dist_testing.attach.absent import LOOK_S, Absent
from dist_testing.attach.guests import peer_of
from dist_testing.attach.helper import start_relay
from dist_testing.attach.launcher import HOME_KEY, TOKEN_VARIABLE
from dist_testing.attach.rank_info import ATTACH_LIMIT_S, RankInfo
from dist_testing.attach.relay_messages import GIVE_UP_SIGNAL, PLACES, Home, RelayPlace, RelayTask
from dist_testing.core.ground.backends import any_declared
from dist_testing.core.ground.errors import InterruptedRunError, LaunchError, MessageError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.procfs import open_files
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.files import log_name
from dist_testing.core.process.lifetime import check_platform, current_umask
from dist_testing.core.process.messages import (
    ATTACHED_MESSAGES,
    ATTACHED_ORDERS,
    AttachedOrder,
    EndRun,
    Hello,
    PartOver,
    RankStart,
    Refused,
    TakePart,
    Welcome,
)
from dist_testing.core.process.refusal import refusal
from dist_testing.core.process.stacks import answer_with_stacks
from dist_testing.core.rank.bootstrap import (
    FAILED_EXIT_CODE,
    RankContext,
    next_instruction,
    own_channel,
    run_world,
    take_over,
)
from dist_testing.core.rank.capture import flush_streams, own_streams, redirect_output
from dist_testing.core.rank.debugging import set_breakpoint_hook
from dist_testing.core.rank.environment import become
from dist_testing.core.rank.groups import backends_in_use
from dist_testing.core.rank.hooks import RankServices, ServedRank
from dist_testing.core.rank.long_texts import LongTexts
from dist_testing.core.rank.reporter import FrameWriter, Reporter
from dist_testing.hang.ledger_thread import LedgerThread, answering

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class _GiveUp(BaseException):
    """Raised in a test to end it. Not an Exception, so that a test's `except Exception` does not catch it."""


def connect(rank_info: RankInfo) -> tuple[socket.socket, tuple[str, ...]]:
    """Find rank 0 and tell it which rank this is.

    Returns:
        The connection, and the folders of the run.

    Raises:
        LaunchError: If rank 0 cannot be reached, or the platform is not Linux.
    """
    check_platform()
    name = f"Rank {rank_info.rank} of {rank_info.size}"
    try:
        path = _path_to_rank_0(rank_info)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        # Any process can write into the store, and this process obeys the messages of the connection.
        if peer_of(connection)[1] != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        wire.send(connection, ATTACHED_MESSAGES, Hello(rank_info.rank))
        answer = wire.receive(connection, ATTACHED_ORDERS)
        if answer is None:
            raise ConnectionError("it has closed the connection")
        if isinstance(answer[0], Refused):
            raise LaunchError(answer[0].text)
        if not isinstance(answer[0], Welcome):
            raise ATTACHED_ORDERS.refused(f"{type(answer[0]).__name__} from rank 0 before Welcome")
    except MessageError as error:
        raise LaunchError(str(error)) from error
    except (RuntimeError, OSError) as error:
        raise LaunchError(
            f"{name} has not found rank 0: {str(error).partition(chr(10))[0]}\n"
            "Rank 0 runs another program, or ended while it collected the tests.\n"
            f"Start every rank by the same command, with {rank_info.launcher}; see the output of rank 0."
        ) from error
    return connection, answer[0].directories


# The relay that this process has started. It ends if this process ends before any rank has connected.
_relays: list[object] = []


def _wait_for_rank_0(store: Store, rank_info: RankInfo) -> None:
    """Wait until rank 0 has told where it is, or has ended."""
    latest_s = time.monotonic() + ATTACH_LIMIT_S
    absent = Absent(store, rank_info)
    try:
        # A store that cannot be reached raises its error here.
        while not store.check([HOME_KEY]):
            if absent.ended([0]):
                raise ConnectionError("it has ended before this rank could connect")
            left_s = latest_s - time.monotonic()
            if left_s <= 0:
                raise ConnectionError(f"it did not come within {ATTACH_LIMIT_S:.0f} s")
            # The wait ends with an error if the key is still missing.
            with contextlib.suppress(RuntimeError):
                store.wait([HOME_KEY], timedelta(seconds=min(left_s, LOOK_S)))
    finally:
        absent.close()


def _path_to_rank_0(rank_info: RankInfo) -> str:
    """Return the path of the Unix socket that leads to rank 0: its own, or the relay's on another node.

    Raises:
        LaunchError: If this node has no relay.
        ConnectionError: If rank 0 has ended.
        RuntimeError: If the store cannot be reached.
    """
    store = rank_info.store()
    _wait_for_rank_0(store, rank_info)
    home = PLACES.from_wire(store.get(HOME_KEY))
    assert isinstance(home, Home)
    own = rank_info.node_key
    if home.node == own:
        return home.path
    if not home.address:
        raise LaunchError(
            f"Rank {rank_info.rank} of {rank_info.size} is not on the node of rank 0, which expects all ranks there.\n"
            f"{rank_info.launcher}'s variables name no other node; set by hand, they lack LOCAL_WORLD_SIZE.\n"
            "Set LOCAL_WORLD_SIZE to the number of ranks of each node."
        )
    key = f"relay/{own}"
    # The first rank of the node to come starts the relay.
    if store.add(f"{key}/count", 1) == 1:
        try:
            process, place = start_relay(
                RelayTask(home.address, home.port, home.token or os.environ.get(TOKEN_VARIABLE, ""))
            )
            _relays.append(process)
        except LaunchError as error:
            place = RelayPlace("", str(error))
        store.set(key, PLACES.to_wire(place).decode())
    found = PLACES.from_wire(store.get(key))
    assert isinstance(found, RelayPlace)
    if found.error:
        raise LaunchError(found.error)
    return found.path


class AttachedRank:
    """Runs this process's part in the worlds that rank 0 asks for. Make it once, in the main thread.

    Attributes:
        is_terminated: Whether torchrun has told this process to end.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: RankContext,
        as_rank: Callable[[], AbstractContextManager[None]],
        *,
        launcher: str,
    ):
        """Install the signal handlers. `launcher` is the name of what has started the ranks."""
        self._launcher = launcher
        self.is_terminated = False
        # To rank 0.
        self._connection = connection
        self._context = context
        # A request tells what rank 0 has changed since its own start.
        self._env = dict(os.environ)
        # Entered around each part: makes the front end's changes in this process, and undoes them.
        self._as_rank = as_rank
        self._can_give_up = False
        self._holds_on = False
        self._sockets_before: frozenset[str] | None = None
        self._store_port = 0
        # A late request for stacks must not end the process, as an unhandled signal does.
        self._ledger = LedgerThread() if sys.platform == "linux" else None
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        answer_with_stacks(self._nowhere)
        signal.signal(GIVE_UP_SIGNAL, self._give_up)
        signal.signal(signal.SIGTERM, self._terminate)
        # Python's handlers run only after the main thread returns from native code; the descriptor is written at once.
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(read,), name="dist_testing-signals", daemon=True).start()

    def serve(self) -> int:
        """Take part in every world, until rank 0 ends the run.

        Returns:
            The exit code of the run.

        Raises:
            LaunchError: If rank 0 ends without a message.
            InterruptedRunError: If torchrun has stopped this process.
        """
        while (received := self._next_order()) is not None:
            order, fds = received
            if isinstance(order, Refused):
                raise LaunchError(order.text)
            if isinstance(order, EndRun):
                # When the first rank ends with a failure, torchrun stops the others. This one is about to end itself.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                return order.exit_code
            self._take_part(order, fds)
            if self.is_terminated:
                raise InterruptedRunError(f"{self._launcher} has stopped the run")
        raise LaunchError(
            "Rank 0 has ended before the run was over.\n"
            "It is the runner: without it no case can be started or reported.\n"
            f"See the output of rank 0, and {self._launcher}'s message about its end."
        )

    def take_part_once(self, *, gives_up: bool = False) -> None:
        """Take part in the world that has just been asked for; only report the end of the part if it `gives_up`."""
        received = self._next_order()
        assert received is not None
        order, fds = received
        if gives_up:
            for fd in fds:
                os.close(fd)
            self._say_over(FAILED_EXIT_CODE)
        else:
            self._take_part(order, fds)

    @contextlib.contextmanager
    def holding_on(self) -> Iterator[None]:
        """In this block, a launcher's signal to end interrupts only the test; `is_terminated` tells of it."""
        self._holds_on = True
        try:
            yield
        finally:
            self._holds_on = False

    def _next_order(self) -> tuple[AttachedOrder, list[int]] | None:
        try:
            return wire.receive(self._connection, ATTACHED_ORDERS)
        except MessageError as error:
            raise LaunchError(str(error)) from error

    def _take_part(self, order: AttachedOrder, fds: list[int]) -> None:
        if not isinstance(order, TakePart):
            raise LaunchError(str(ATTACHED_ORDERS.refused(f"{type(order).__name__} in place of TakePart")))
        if not fds:
            self._say_over(FAILED_EXIT_CODE)
            raise LaunchError(
                f"Rank {order.rank} of {order.request.size} could not begin: "
                f"{refusal(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))}"
            )
        env = {name: value for name, value in self._env.items() if name not in order.removed}
        request = dataclasses.replace(order.request, env={**order.defaults, **env, **order.request.env})
        rank = order.rank
        channel_fd, stacks_fd, board_fd, *stores = fds
        start = RankStart(
            request, rank, channel_fd, stacks_fd, board_fd, stores[0] if stores else None, fork_server_pid=os.getpid()
        )
        channel = own_channel(start)
        board = PhaseBoard(board_fd, request.size)
        code = FAILED_EXIT_CODE
        try:
            fit = LongTexts(request.directory, rank).fit
            reporter = Reporter(FrameWriter(channel), board, rank, fit=fit)
            with (
                _in_place_of_runner(start, self._nowhere),
                answering(self._ledger, stacks_fd),
                self._as_rank(),
                self._giving_up(request.store_port),
            ):
                self._run(start, reporter, channel)
            if not reporter.failed:
                code = 0
        except _GiveUp:
            # The signal came before the test began, or after its end.
            pass
        finally:
            channel.close()
            board.close()
            for fd in (board_fd, stacks_fd):
                os.close(fd)
            self._say_over(code)

    def _run(self, start: RankStart, reporter: Reporter, channel: socket.socket) -> None:
        try:
            front_end = self._context.front_end(start.request.body)
        except BaseException as error:
            reporter.never_started(error)
            return
        run_world(start, reporter, channel, front_end, RankServices(ServedRank(start, reporter)))
        del front_end
        flush_streams()
        _end_groups(failed=reporter.failed)
        reporter.done()
        if not reporter.failed and start.store_fd is not None:
            # The others may still need the store that lives in this process.
            next_instruction(channel, reporter)

    def _say_over(self, code: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self._connection, ATTACHED_MESSAGES, PartOver(code))

    @contextlib.contextmanager
    def _giving_up(self, store_port: int) -> Iterator[None]:
        """Let GIVE_UP_SIGNAL end the rank's part in this block only."""
        self._store_port = store_port
        self._sockets_before = _sockets()
        self._can_give_up = True
        try:
            if self.is_terminated:
                raise _GiveUp("the launcher has stopped this rank before its part in the case")
            yield
        finally:
            self._can_give_up = False
            self._sockets_before = None

    def _give_up(self, number: int, _: FrameType | None) -> None:
        if self._can_give_up:
            # Only once: the test's own clean-up must not be interrupted.
            self._can_give_up = False
            raise _GiveUp("the runner has stopped this rank's part in the case")

    def _terminate(self, number: int, _: FrameType | None) -> None:
        first, self.is_terminated = not self.is_terminated, True
        if self._sockets_before is None and first and not self._holds_on:
            raise InterruptedRunError(f"this rank got {exit_name(-number)}")

    def _listen(self, read: int) -> None:
        """Get the main thread out of native code by closing the connections that it waits for."""
        while numbers := os.read(read, 64):
            if not {GIVE_UP_SIGNAL, int(signal.SIGTERM)}.isdisjoint(numbers):
                before = self._sockets_before
                if before is not None:
                    _cut(_sockets() - before, self._store_port)


@contextlib.contextmanager
def _in_place_of_runner(start: RankStart, nowhere: int) -> Iterator[None]:
    """Set environment, working directory, output and stacks for the rank; afterwards restore them."""
    flush_streams()
    env, cwd, umask = dict(os.environ), os.getcwd(), current_umask()
    streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
    streams += [(f"__{name}__", getattr(sys, f"__{name}__")) for name, _ in streams]
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    undo_hook = set_breakpoint_hook(start.rank, None)
    try:
        redirect_output(os.path.join(start.request.directory, log_name(start.rank)))
        own_streams()
        answer_with_stacks(start.stacks_fd)
        take_over(start.request)
        os.environ.update(start.request.layout.rank_env(start.rank))
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
    """End the groups that the case has made; after a failure without the other ranks, which may not respond."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return
    if not torch.distributed.is_initialized():
        # An init_process_group that was given up has counted its group, and the next one must have the same name on all
        # ranks.
        torch.distributed.distributed_c10d._world.group_count = 0
        return
    if failed and any(
        any_declared(name, lambda backend: backend.aborts)
        for name in backends_in_use(torch.distributed.distributed_c10d)
    ):
        torch.distributed.distributed_c10d._abort_process_group()
    else:
        torch.distributed.destroy_process_group()


def _sockets() -> frozenset[str]:
    """Return the descriptors that are sockets, each with the kernel's name of the socket."""
    return frozenset(f"{fd} {name}" for fd, name in open_files().items() if name.startswith("socket:"))


def _cut(sockets: frozenset[str], store_port: int) -> None:
    """Shut down those of the sockets that are TCP connections.

    Servers stay, and so do the connections of the world's store, which this process may serve at `store_port`: the
    store ends the whole process if it loses one.
    """
    for entry in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.partition(" ")[0]))) as copy:
            is_server = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and not is_server and copy.getsockname()[1] != store_port:
                copy.shutdown(socket.SHUT_RDWR)
