"""What the runner asks of a launcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dist_testing.process.messages import LauncherEvent, WorldRequest

__all__ = ["Launcher"]


class Launcher(Protocol):
    """Makes worlds, one at a time, and says how their ranks end."""

    @property
    def unclean_reasons(self) -> Sequence[str]:
        """Why ranks do not come from this process; empty if they do."""

    def fileno(self) -> int:
        """For polling: readable when there are events."""

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Ask for a world. The descriptors are the launcher's own copies from then on.

        Raises:
            LaunchError: If there can be none any more.
        """

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of `ranks` that still run."""

    def events(self) -> Iterator[LauncherEvent]:
        """Yield what has happened since the last call.

        Raises:
            LaunchError: If there can be no world any more.
        """

    def close(self) -> None:
        """Let everything go."""
