"""The fork server: a clean process that ranks are forked from, and that reports how they end.

    runner  --- WorldRequest, descriptors --->  fork server  --- fork --->  ranks
            <-- WorldStarted, RankEnded, WorldOver --
    runner  <------------------ messages -----------------------------------  each rank

It has torch and the test modules imported, one thread, no process group and no CUDA context, and it runs no test code.
It is the parent of the ranks: only it waits for them, and it adopts the processes that they leave behind. When the
runner is gone, for any reason, the fork server kills all its descendants and ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import json
import os
import select
import shutil
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from dist_testing.core.ground.add_ons import add_on_named, add_ons, always, blaming
from dist_testing.core.ground.errors import AddOnError, MessageError
from dist_testing.core.launch.fresh import become_rank, load_tests
from dist_testing.core.launch.launcher import IdleWork, WorldPlace
from dist_testing.core.process import collector, wire
from dist_testing.core.process.launcher_messages import (
    FORK_SERVER_EVENTS,
    FORK_SERVER_ORDERS,
    FRESH_PROGRAMS,
    ForkServerEvent,
    FreshForkServer,
    Loader,
    RankEnded,
    RankStart,
    RunEvent,
    SignalRanks,
    Unfit,
    WorldExtra,
    WorldOver,
    WorldRefused,
    WorldRequest,
    WorldStarted,
)
from dist_testing.core.process.lifetime import become_subreaper, fork, watch_child
from dist_testing.core.process.orphans import Orphans, kill_tracer, mark_descendants, mark_rank
from dist_testing.core.process.refusal import refusal
from dist_testing.core.process.stacks import has_sanitizer
from dist_testing.core.rank.bootstrap import RankContext, enter, take_over
from dist_testing.core.rank.capture import own_streams

# The report shows this much of the command line of an orphan process.
_COMMAND_CHARS = 2000

_Handler = Callable[[int, FrameType | None], Any] | int | None


@dataclass(slots=True)
class _World:
    number: int
    ranks: dict[int, list[int]]  # pid -> its ranks: one, unless they are threads
    pidfds: dict[int, int] = field(default_factory=dict)  # pidfd -> pid
    place_name: str = ""  # of its add-on
    place: WorldPlace | None = None
    place_fd: int = -1  # in the poller


class _ForkServer:
    def __init__(
        self, control: socket.socket, runner: int, context: RankContext, loader: Loader, on_child: _Handler, forks: int
    ) -> None:
        self._control = control
        self._runner = runner
        self._context = context
        self._loader = loader
        self._on_child = on_child
        self.orphans = Orphans()
        self._world: _World | None = None
        self._over: WorldOver | None = None
        self._idle_work = _idle_work(forks)
        # Before `take_over` changes it.
        self._env = dict(os.environ)
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        # A process that the runner has forked may keep its end of the connection open.
        self._poller.register(runner, select.POLLIN)

    def run(self) -> None:
        """Serve until the runner has ended, or closes its end of the connection for writing."""
        while True:
            ready = self._poller.poll(self._pause_ms())
            if not ready:
                self._work()
            for fd, _ in ready:
                if fd == self._runner:
                    return
                if fd == self._control.fileno():
                    if not self._handle_order():
                        return
                elif self._world is not None and fd == self._world.place_fd:
                    assert self._world.place is not None
                    with blaming(self._world.place_name, "its place"):
                        self._tell(self._world, self._world.place.answers())
                elif self._world is not None and fd in self._world.pidfds:
                    # Else it belongs to a world that has just ended.
                    self._reap(fd)

    def _pause_ms(self) -> int | None:
        pauses = [work.pause_ms(has_world=self._world is not None) for work in self._idle_work.values()]
        return min((pause_ms for pause_ms in pauses if pause_ms is not None), default=None)

    def _work(self) -> None:
        for name, work in self._idle_work.items():
            with blaming(name, "its idle work"):
                event = work.idle_step()
            if event is not None:
                self._send(RunEvent(json.dumps(event.to_wire())))

    def is_orphaned(self) -> bool:
        """Return whether the runner has ended without waiting for this process."""
        control = self._control.fileno()
        return any(
            fd == self._runner or (fd == control and event & select.POLLHUP) for fd, event in self._poller.poll(0)
        )

    def _handle_order(self) -> bool:
        received = wire.receive(self._control, FORK_SERVER_ORDERS)
        if received is None:
            return False
        order, fds = received
        match order:
            case WorldRequest():
                self._start(order, fds)
            case SignalRanks():
                self._signal(order.ranks, order.number)
            case WorldExtra():
                self._order_place(order)
        return True

    def _send(self, event: ForkServerEvent) -> None:
        wire.send(self._control, FORK_SERVER_EVENTS, event)

    def _start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        if not fds:
            self._refuse(request.world, 0, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            self._end_world(_World(request.world, {}))
            return
        if len(fds) != request.fd_count:
            for fd in fds:
                os.close(fd)
            raise FORK_SERVER_ORDERS.refused(
                f"world {request.world} came with {len(fds)} descriptors; expected {request.fd_count}"
            )
        self._world = world = _World(request.world, {}, place_name=request.place)
        fork_server_pid = os.getpid()
        every = list(request.made_ranks)
        request = request.in_env(self._env)
        try:
            take_over(request)
            if request.place:
                with blaming(request.place, "its place"):
                    world.place = add_on_named(request.place, f"world {request.world}").load("place")(request)
            for name in request.services:
                add_on_named(name, f"world {request.world}").load("rank_service")
            if request.in_process_of:
                # Imported before the fork, so once for all worlds.
                add_on_named(request.in_process_of, f"world {request.world}").load("rank_process")
        except OSError as error:
            self._refuse(request.world, 0, error)
            every = []
        for ranks in [every] if request.in_process_of and every else [[rank] for rank in every]:
            try:
                pid = fork()
                pidfd = watch_child(pid) if pid else -1
            except OSError as error:
                self._refuse(request.world, ranks[0], error)
                self.kill_ranks()
                break
            if pid == 0:
                starts = [_in_place(request.start_of(rank, fds, fork_server_pid), world.place) for rank in ranks]
                mine = {fd for start in starts for fd in start.fds}
                of_place = world.place.fds if world.place is not None else ()
                for fd in [*fds, *of_place, *world.pidfds, self._runner, self._control.detach()]:
                    if fd not in mine:
                        os.close(fd)
                self._run_ranks(starts)
            world.ranks[pid] = ranks
            world.pidfds[pidfd] = pid
            self._poller.register(pidfd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        if world.ranks:
            for work in self._idle_work.values():
                work.forked(len(world.ranks))
            pids = {rank: pid for pid, ranks in world.ranks.items() for rank in ranks}
            self._send(WorldStarted(world.number, tuple(pids[rank] for rank in sorted(pids))))
        else:
            self._end_world(world)

    def _order_place(self, order: WorldExtra) -> None:
        world = self._world
        # Else it has ended, and with it all that has asked.
        if world is not None and world.number == order.world and world.place is not None:
            with blaming(order.add_on, "its place"):
                answer = world.place.order(order.add_on, order.payload)
            self._tell(world, [(order.add_on, answer)] if answer else [])

    def _tell(self, world: _World, answers: Iterable[tuple[str, str]]) -> None:
        """Pass on answers of the place, and wait for more if it has a descriptor."""
        assert world.place is not None
        for add_on, answer in answers:
            self._send(WorldExtra(world.number, add_on, answer))
        self._await_place(world, world.place.fileno())

    def _await_place(self, world: _World, fd: int) -> None:
        """Wait for answers of the place at this descriptor from now on; -1 for none."""
        if fd != world.place_fd:
            if world.place_fd >= 0:
                self._poller.unregister(world.place_fd)
            if fd >= 0:
                self._poller.register(fd, select.POLLIN)
            world.place_fd = fd

    def _refuse(self, world: int, rank: int, error: OSError) -> None:
        self._send(WorldRefused(world, rank, refusal(error)))

    def _run_ranks(self, starts: Sequence[RankStart]) -> NoReturn:
        if self._on_child is not None:
            signal.signal(signal.SIGCHLD, self._on_child)
        request = starts[0].request
        if request.in_process_of:
            # It never returns.
            add_on_named(request.in_process_of, f"world {request.world}").load("rank_process")(starts, self._context)
        (start,) = starts
        mark_rank(start.rank)
        if not request.fresh:
            enter(start, self._context)
        try:
            become_rank(start, self._loader)
        finally:
            # Without the interpreter the rank cannot report. The runner sees a rank that never started.
            os._exit(1)

    def _signal(self, ranks: Sequence[int], number: int) -> None:
        if self._world is None:
            if self._over is not None:
                # Ctrl-C may have made the runner drop it.
                self._send(self._over)
            return
        for pid, its_ranks in self._world.ranks.items():
            if not set(ranks).isdisjoint(its_ranks):
                # A rank that became a setuid program may belong to another user. The runner reports that it does not
                # end.
                with contextlib.suppress(PermissionError):
                    # The table holds only processes that are not reaped, so the pid is still the rank's.
                    os.kill(pid, number)
                if number == signal.SIGKILL:
                    kill_tracer(pid)

    def kill_ranks(self) -> None:
        """Kill the ranks of the running world, if there is one."""
        if self._world is not None:
            self._signal([rank for ranks in self._world.ranks.values() for rank in ranks], signal.SIGKILL)

    def _reap(self, pidfd: int) -> None:
        world = self._world
        assert world is not None
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = world.pidfds.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        for rank in world.ranks.pop(pid):
            self._send(RankEnded(world.number, rank, os.waitstatus_to_exitcode(status)))
        if not world.pidfds:
            self._end_world(world)

    def _end_world(self, world: _World) -> None:
        self._world = None
        for work in self._idle_work.values():
            work.world_over()
        if world.place is not None:
            self._await_place(world, -1)
            with blaming(world.place_name, "the end of its place"):
                world.place.close()
            for fd in world.place.fds:
                os.close(fd)
        leaked = self.orphans.remove()
        shown = [one if len(one) <= _COMMAND_CHARS else f"{one[:_COMMAND_CHARS]} ..." for one in leaked]
        self._over = WorldOver(world.number, tuple(shown))
        self._send(self._over)


def _idle_work(forks: int) -> dict[str, IdleWork]:
    """Make the idle work of all add-ons, by the add-on's name."""
    made = {}
    for add_on in add_ons():
        if add_on.idle_work:
            with blaming(add_on.name, "its idle work"):
                made[add_on.name] = add_on.load("idle_work")(forks)
    return made


def _in_place(start: RankStart, place: WorldPlace | None) -> RankStart:
    if place is None:
        return start
    store_fd = place.store_fd if start.rank == 0 else start.store_fd
    return dataclasses.replace(start, place_fds=place.fds_of(start.rank), store_fd=store_fd)


def serve(
    control: socket.socket,
    runner: int,
    context: RankContext,
    loader: Loader,
    run_directories: Sequence[str],
    forks: int = 0,
) -> NoReturn:
    """Be the fork server until the runner is gone, then remove all descendants.

    It also removes the folders of the run if the runner cannot. `runner` is a pidfd of it. `forks`: the ranks that the
    run will fork, if known.
    """
    code = 1
    try:
        # Bazel signals the whole process group. The runner decides what to do; this process lives until the runner has
        # closed the socket. Ranks and their children would inherit SIG_IGN, but they do not inherit a handler.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # With `nohup`, the runner and its ranks ignore SIGHUP.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        # Ctrl-\ ends the runner. Blocked, so that ranks keep the handler of a test file, such as faulthandler's.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])
        # A handler of a test file or of an agent could wait for the ranks before this process does. Ranks get the
        # handler back, as if the runner had forked them.
        on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become_subreaper()
        # For the runner, in case that this process is killed.
        mark_descendants()
        own_streams()
        context.prepare()
        # Each fork has the answer, and the modules.
        has_sanitizer()
        for add_on in add_ons():
            if add_on.rank_service and add_on.wanted is always:
                add_on.load("rank_service")
        # The garbage collector of a rank does not touch frozen objects, so their pages stay shared. A collection before
        # that would find little, touch every object that torch's import has made, and take 0.1 s.
        gc.freeze()
        collector.resume()
        server = _ForkServer(control, runner, context, loader, on_child, forks)
        # The runner may end while it gets a message.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                server.run()
            except (AddOnError, MessageError) as error:
                # After one unreadable order, the next one cannot be found.
                wire.send(control, FORK_SERVER_EVENTS, Unfit(str(error)))
        server.kill_ranks()
        server.orphans.remove()
        if server.is_orphaned():
            for path in run_directories:
                shutil.rmtree(path, ignore_errors=True)
        code = 0
    except BaseException:
        # A bug of this library must not look like a kill.
        text = f"The fork server has failed because of a bug of dist_testing:\n{traceback.format_exc()}"
        with contextlib.suppress(OSError):
            wire.send(control, FORK_SERVER_EVENTS, Unfit(text))
    finally:
        os._exit(code)


def main(text: str) -> NoReturn:
    """Be the fork server in a fresh interpreter. The launcher starts it if the runner is unfit to be forked."""
    order = FRESH_PROGRAMS.from_wire(text)
    assert isinstance(order, FreshForkServer)
    for fd in (order.control_fd, order.runner_fd):
        os.set_inheritable(fd, False)
    control = socket.socket(fileno=order.control_fd)
    loader = order.loader
    collector.pause()
    try:
        load_tests(
            loader,
            lambda context: serve(control, order.runner_fd, context, loader, order.run_directories, order.forks),
        )
    except BaseException as error:
        wire.send(control, FORK_SERVER_EVENTS, Unfit(str(error)))
    finally:
        os._exit(1)
