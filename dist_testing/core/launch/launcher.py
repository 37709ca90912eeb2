"""The interface of launchers, and the facts of the run that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dist_testing.core.events.event import Event
from dist_testing.core.process.launcher_messages import LauncherEvent, Loader, WorldRequest
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
