"""The parts of add-ons that take place in the fork server."""

from __future__ import annotations

from typing import Protocol

from dist_testing.events.event import Event


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
