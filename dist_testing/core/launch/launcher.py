"""The interfaces of launchers, with the facts of the run that they get, and of add-ons in the fork server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dist_testing.core.events.event import Event
from dist_testing.core.process.launcher_messages import LauncherEvent, Loader, RankStart, WorldRequest
from dist_testing.core.rank.bootstrap import RankContext


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts of the run that launchers need.

    Attributes:
        loader: How a fresh interpreter finds the tests again.
        directories: Folders of the run. A process that outlives the runner removes them.
        temp: A path to the run's folder that is short enough for sockets.
        may_fork_runner: Whether ranks may inherit the modules and the state of the runner. If not, each rank comes from
            a fresh interpreter.
        keeps_state: Whether the ranks need the runner's memory, such as a function that has no name, so that the runner
            is forked although it has other threads. No other interpreter can replace it.
        forks: Number of ranks that the run will fork, as far as it is known; 0 if it is not.
        emit: Takes an event of the run.
    """

    ranks: RankContext
    loader: Loader
    directories: Sequence[str] = ()
    temp: str = ""
    may_fork_runner: bool = True
    keeps_state: bool = False
    forks: int = 0
    emit: Callable[[Event], None] = lambda event: None


class Launcher(Protocol):
    """Makes worlds, one at a time, and reports how their ranks end."""

    @property
    def unclean_reasons(self) -> Sequence[str]:
        """Why ranks are not forked from this process; empty if they are, or if nothing is forked."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask for a world. The launcher has its own copies of the descriptors when this returns.

        Args:
            request: The world.
            fds: The ranks' ends of their channels, by rank; the pipes for their stacks, by rank; the phase board; the
                listening socket of the store, if the request has a store port; the lease descriptors.

        Raises:
            LaunchError: If the launcher can make no more worlds.
        """

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""

    def events(self) -> Iterator[LauncherEvent]:
        """Yield the events since the last call.

        Raises:
            LaunchError: If the launcher can make no more worlds.
        """

    def close(self) -> None:
        """End everything that the launcher has started."""


@runtime_checkable
class PlaceLauncher(Protocol):
    """A launcher whose worlds can have a place that an add-on has made."""

    def order(self, world: int, add_on: str, payload: str) -> None:
        """Give the place of a world an order of an add-on. The event `WorldExtra` can answer."""


class IdleWork(Protocol):
    """Work of the fork server while it waits: the part `idle_work` of an add-on.

    It is made once, before the first world, with the number of ranks that the run will fork (0: not known). The fork
    server has one thread, so each step must end in some milliseconds.

        class Trimming:
            def __init__(self, forks: int) -> None:
                self._is_done = False

            def forked(self, ranks: int) -> None: ...

            def world_over(self) -> None: ...

            def pause_ms(self, *, has_world: bool) -> int | None:
                return None if self._is_done or has_world else 10

            def idle_step(self) -> Event | None:
                ctypes.CDLL(None).malloc_trim(0)
                self._is_done = True
                return None
    """

    def forked(self, ranks: int) -> None:
        """Note that a world with so many processes has begun."""

    def world_over(self) -> None:
        """Note that the world has ended."""

    def pause_ms(self, *, has_world: bool) -> int | None:
        """Return after how many milliseconds without other work `idle_step` is due; None if there is nothing to do.

        `has_world` says whether ranks run.
        """

    def idle_step(self) -> Event | None:
        """Do a part of the work. Return an event for the run, or None. The event gets its time in the runner."""


class WorldPlace(Protocol):
    """Where the ranks of one world live: the part `place` of an add-on, such as simulated nodes or a control group.

    The fork server makes it with the request for a world, before it forks the ranks. At most one add-on can have the
    place of a world.

        class InCgroup:
            store_fd = None

            def __init__(self, request: WorldRequest) -> None:
                self._folder = make_group(request.world)
                self.fds = (os.open(self._folder, os.O_RDONLY),)

            @staticmethod
            def enter(start: RankStart) -> None:
                join_group(start.place_fds[0])

            def fds_of(self, rank: int) -> tuple[int, ...]:
                return self.fds

            def fileno(self) -> int:
                return -1

            def order(self, add_on: str, payload: str) -> str:
                return ""

            def answers(self) -> Iterator[tuple[str, str]]:
                return iter(())

            def close(self) -> None:
                remove_group(self._folder)

    An `OSError` of the constructor, or of `enter`, refuses the world: no rank starts.

    Attributes:
        fds: Descriptors of the fork server that hold the place. It closes them at the end of the world.
        store_fd: One of them: a socket that listens at the address of the world's store. None if the place makes none.
    """

    @property
    def fds(self) -> tuple[int, ...]: ...  # noqa: D102 - above

    @property
    def store_fd(self) -> int | None: ...  # noqa: D102 - above

    @staticmethod
    def enter(start: RankStart) -> None:
        """Move this process into the place of its rank, right after the fork. `start.place_fds` are those of `fds_of`.

        It closes those descriptors.
        """

    def fds_of(self, rank: int) -> tuple[int, ...]:
        """Return the descriptors that `enter` needs for a rank."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `answers` has something; -1 for none now."""

    def order(self, add_on: str, payload: str) -> str:
        """Do what the watcher of an add-on has ordered. Return an answer for it; "" for none, or if it comes later."""

    def answers(self) -> Iterator[tuple[str, str]]:
        """Yield what has to be told to watchers, each with the name of the add-on."""

    def close(self) -> None:
        """End what the place has started: the ranks are gone."""
