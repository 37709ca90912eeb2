"""The template: a clean process that ranks are forked from, and that answers for them.

    runner  --- start(request, descriptors) --->  template  --- fork --->  ranks
            <-- started, ended(rank, status), over(leaked) --
    runner  <------------------ frames ------------------------------------  each rank

It has torch and the test modules imported, one thread, no group and no CUDA context, and it runs no test code. It is
the ranks' parent, so that it alone waits for them; it adopts what they leave behind; and when the runner is gone,
however that came about, it kills everything below it and goes too.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import psutil

from dist_testing.launch import fresh, wire
from dist_testing.rank.bootstrap import RankSide, RankStart, enter, take_over
from dist_testing.rank.capture import own_streams
from dist_testing.rank.process import become_subreaper, fork

__all__ = ["serve"]

# What a rank leaves behind may be on its way out, as multiprocessing's resource tracker is when its last user ends.
# Seconds until it counts as left behind.
_LEAVING_S = 0.5
# After a kill; only a process stuck in the kernel takes longer. Seconds.
_KILLED_S = 5.0


@dataclass(slots=True)
class _World:
    number: int
    ranks: dict[int, int]  # pid -> rank
    pidfds: dict[int, int] = field(default_factory=dict)  # pidfd -> pid


class _Template:
    def __init__(self, control: socket.socket, side: RankSide, loader: fresh.Loader) -> None:
        self._control = control
        self._side = side
        self._loader = loader
        self._world: _World | None = None
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def run(self) -> None:
        """Serve until the runner closes its end."""
        while True:
            for fd, _ in self._poller.poll():
                if fd != self._control.fileno():
                    self._reap(fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        received = wire.receive(self._control)
        if received is None:
            return False
        message, fds = received
        match message["do"]:
            case "start":
                self._start(wire.WorldRequest.from_message(message), fds)
            case "signal":
                self._signal(message["ranks"], message["signal"])
        return True

    def _start(self, request: wire.WorldRequest, fds: Sequence[int]) -> None:
        channels, stacks, (board, *stores) = (
            fds[: request.size],
            fds[request.size : 2 * request.size],
            fds[2 * request.size :],
        )
        self._world = world = _World(request.world, {})
        template_pid = os.getpid()
        try:
            take_over(request)
        except OSError as error:
            self._refuse(request.world, 0, error)
            request = dataclasses.replace(request, size=0)
        for rank in range(request.size):
            try:
                pid = fork()
            except OSError as error:
                self._refuse(request.world, rank, error)
                self._signal(list(world.ranks.values()), signal.SIGKILL)
                break
            if pid == 0:
                store = stores[0] if stores and rank == 0 else None
                start = RankStart(request, rank, channels[rank], stacks[rank], board, store, template_pid)
                mine = (start.channel_fd, start.stacks_fd, start.board_fd, start.store_fd)
                for fd in [*fds, *world.pidfds, self._control.detach()]:
                    if fd not in mine:
                        os.close(fd)
                self._be_rank(start)
            pidfd = os.pidfd_open(pid)
            world.ranks[pid] = rank
            world.pidfds[pidfd] = pid
            self._poller.register(pidfd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        if world.ranks:
            pids = {rank: pid for pid, rank in world.ranks.items()}
            wire.send(
                self._control,
                {"event": "started", "world": world.number, "pids": [pids[rank] for rank in sorted(pids)]},
            )
        else:
            self._over(world)

    def _refuse(self, world: int, rank: int, error: OSError) -> None:
        wire.send(self._control, {"event": "refused", "world": world, "rank": rank, "text": str(error)})

    def _be_rank(self, start: RankStart) -> NoReturn:
        if not start.request.fresh:
            enter(start, self._side)
        try:
            fresh.become_rank(start, self._loader)
        finally:
            # Nothing can be reported without the interpreter; the runner sees a rank that never began.
            os._exit(1)

    def _signal(self, ranks: Sequence[int], number: int) -> None:
        if self._world is None:
            return
        for pid, rank in self._world.ranks.items():
            if rank in ranks:
                # Not reaped yet, or it would not be in the table: the pid is still the rank's.
                os.kill(pid, number)

    def _reap(self, pidfd: int) -> None:
        world = self._world
        assert world is not None
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = world.pidfds.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        rank = world.ranks.pop(pid)
        wire.send(
            self._control,
            {
                "event": "ended",
                "world": world.number,
                "rank": rank,
                "exit_code": os.waitstatus_to_exitcode(status),
            },
        )
        if not world.pidfds:
            self._over(world)

    def _over(self, world: _World) -> None:
        self._world = None
        wire.send(self._control, {"event": "over", "world": world.number, "leaked": _remove_descendants(_LEAVING_S)})


def _remove_descendants(leaving_s: float) -> list[str]:
    """Kill what lives below this process and reap it.

    Args:
        leaving_s: How long a process may take to end by itself, in seconds.

    Returns:
        Command lines of those that had to be killed.
    """
    if not _reap_adopted():
        return []
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=leaving_s)
    leaked: list[str] = []
    deadline = time.monotonic() + _KILLED_S
    # More than one round: between the look and the kill, a process may have made another.
    while _reap_adopted() and time.monotonic() < deadline:
        alive = [child for child in psutil.Process().children(recursive=True) if _is_alive(child)]
        for child in alive:
            try:
                leaked.append(f"{' '.join(child.cmdline()) or child.name()} (pid {child.pid})")
                child.kill()
            except psutil.NoSuchProcess:
                # It ended by itself in between.
                pass
        psutil.wait_procs(alive, timeout=max(0.0, deadline - time.monotonic()))
    return leaked


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _reap_adopted() -> bool:
    """Reap every dead child; say whether living ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def serve(control: socket.socket, side: RankSide, loader: fresh.Loader, run_directories: Sequence[str]) -> NoReturn:
    """Be the template until the runner is gone, then leave nothing behind.

    Args:
        control: This end of the socket pair to the runner.
        side: What the ranks have of the run.
        loader: How a fresh interpreter finds the tests again.
        run_directories: Removed at the end if the runner did not get to do it.
    """
    code = 1
    try:
        # Bazel signals the whole process group at once. The runner decides what happens then; this process lives until
        # the runner has closed the socket. A handler and not SIG_IGN, which ranks and their children would inherit.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        become_subreaper()
        own_streams()
        side.prepare()
        gc.collect()
        # Frozen objects are not touched by a rank's collections, so their pages stay shared.
        gc.freeze()
        _Template(control, side, loader).run()
        _remove_descendants(_LEAVING_S)
        for path in run_directories:
            shutil.rmtree(path, ignore_errors=True)
        code = 0
    finally:
        os._exit(code)
