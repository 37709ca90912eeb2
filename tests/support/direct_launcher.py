"""A launcher of the tests' own: each rank is forked by the runner itself, without a fork server.

It is the proof that a new isolation costs one file: this one, which registers itself at its end.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Iterator, Sequence

from dist_testing.core.launch.isolation import Isolation, register_isolation
from dist_testing.core.launch.launcher import RunContext
from dist_testing.core.process.launcher_messages import LauncherEvent, RankEnded, WorldOver, WorldRequest, WorldStarted
from dist_testing.core.process.lifetime import fork, watch_child
from dist_testing.core.rank.bootstrap import enter, take_over


class DirectLauncher:
    """Forks the ranks of a world from this process."""

    unclean_reasons: Sequence[str] = ()

    def __init__(self, run: RunContext) -> None:
        """`run` has what the ranks need of the run."""
        self._run = run
        self._world = 0
        self._pids: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._events: deque[LauncherEvent] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""
        return self._epoll.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Fork the ranks."""
        self._world = request.world
        for rank in range(request.size):
            pid = fork()
            if pid == 0:
                self._be_rank(request, rank, fds)
            self._pids[rank] = pid
            pidfd = watch_child(pid)
            self._ranks[pidfd] = rank
            self._epoll.register(pidfd, select.EPOLLIN)
        self._events.append(WorldStarted(request.world, tuple(self._pids.values())))
        os.eventfd_write(self._bell, 1)

    def _be_rank(self, request: WorldRequest, rank: int, fds: Sequence[int]) -> None:
        try:
            start = request.start_of(rank, fds, os.getppid())
            for fd in fds:
                if fd not in start.fds:
                    os.close(fd)
            take_over(request)
            self._run.ranks.prepare()
            enter(start, self._run.ranks)
        finally:
            os._exit(1)

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""
        for rank in ranks:
            if rank in self._pids:
                # Not reaped yet, so the number is still the rank's.
                os.kill(self._pids[rank], number)

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call."""
        for fd, _ in self._epoll.poll(0):
            if fd == self._bell:
                os.eventfd_read(self._bell)
                continue
            rank = self._ranks.pop(fd)
            self._epoll.unregister(fd)
            os.close(fd)
            _, status = os.waitpid(self._pids.pop(rank), 0)
            self._events.append(RankEnded(self._world, rank, os.waitstatus_to_exitcode(status)))
            if not self._ranks:
                self._events.append(WorldOver(self._world, ()))
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        """End the ranks that still run."""
        self.signal(list(self._pids), signal.SIGKILL)
        for fd, rank in self._ranks.items():
            os.waitpid(self._pids.pop(rank), 0)
            os.close(fd)
        self._ranks.clear()
        self._epoll.close()
        os.close(self._bell)


DIRECT = register_isolation(Isolation("direct", DirectLauncher))
