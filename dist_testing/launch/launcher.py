"""What the engine asks of a launcher, and what a launcher is given of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dist_testing.process.messages import LauncherEvent, Loader, WorldRequest
from dist_testing.rank.bootstrap import RankContext

__all__ = ["Launcher", "RunContext"]


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a launcher is given of the run.

    Attributes:
        ranks: What the ranks have of the run.
        loader: How a fresh interpreter finds the tests again.
        directories: Folders that the run writes in. A process that outlives the runner removes them.
        temp: The start of every rank's TMPDIR, by which processes that ranks started are recognised.
    """

    ranks: RankContext
    loader: Loader
    directories: Sequence[str]
    temp: str


class Launcher(Protocol):
    """Makes worlds, one at a time, and reports how their ranks end."""

    @property
    def unclean_reasons(self) -> Sequence[str]:
        """Why ranks do not come from this process; empty if they do."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask for a world. The launcher has its own copies of the descriptors when this returns.

        Args:
            request: The world.
            fds: For each rank the other end of its channel; for each rank the pipe for its stacks; the phase board; the
                listening socket of the store, if the request has a store port; the lease descriptors.

        Raises:
            LaunchError: If the launcher can make no world any more.
        """

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call.

        Raises:
            LaunchError: If there can be no world any more.
        """

    def close(self) -> None:
        """End everything that the launcher has started."""
