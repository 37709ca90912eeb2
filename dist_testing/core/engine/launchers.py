"""Makes what the worlds of a run share, when a case needs it: the run's folder and the launchers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable

from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.events.event import Event
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.launch.isolation import Isolation
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.rank.bootstrap import RankContext


class Launchers:
    """Holds the folder of a run, and one launcher for all isolations with the same `make_launcher`.

    Attributes:
        forks: Number of ranks that the run will fork, as far as it is known; 0 if it is not.
    """

    def __init__(
        self,
        ranks: RankContext,
        loader: Loader,
        *,
        may_fork_runner: bool = True,
        keeps_state: bool = False,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.forks = 0
        self._may_fork_runner = may_fork_runner
        self._make = functools.partial(
            Launchers, ranks, loader, may_fork_runner=may_fork_runner, keeps_state=keeps_state
        )
        self._context = functools.partial(
            RunContext, ranks, loader, may_fork_runner=may_fork_runner, keeps_state=keeps_state, emit=emit
        )
        self._made: dict[Callable[[RunContext], Launcher], Launcher] = {}
        self._directory: RunDirectory | None = None

    def others(self, emit: Callable[[Event], None]) -> Launchers:
        """Return launchers like these, with a folder of their own, whose worlds can run beside those of these."""
        return self._make(emit=emit)

    @property
    def directory(self) -> RunDirectory:
        """The folder of the run.

        Raises:
            OSError: If it cannot be made.
        """
        if self._directory is None:
            self._directory = RunDirectory(os.environ)
        return self._directory

    def of(self, isolation: Isolation) -> Launcher:
        """Return the launcher of an isolation.

        Raises:
            LaunchError: If it cannot be made.
            OSError: If the machine lacks the resources.
        """
        if (launcher := self._made.get(isolation.make_launcher)) is None:
            if self._may_fork_runner:
                # Every rank needs it, even if the test file does not import it. The fork server loads it once for all.
                importlib.import_module("torch.distributed")
                add_ons()
            run = self._context(self.directory.all_paths, str(self.directory.short), forks=self.forks)
            launcher = self._made[isolation.make_launcher] = isolation.make_launcher(run)
        return launcher

    def close(self) -> None:
        """Close all launchers. The next case makes new ones."""
        made, self._made = self._made, {}
        with contextlib.ExitStack() as whatever_happens:
            for launcher in made.values():
                whatever_happens.callback(launcher.close)

    def end(self) -> None:
        """Close all launchers, and remove the folder whatever happens."""
        directory, self._directory = self._directory, None
        try:
            if directory is not None:
                # If this process is killed now, the fork server does it. When that has ended, no process would.
                directory.remove_files()
            self.close()
        finally:
            if directory is not None:
                directory.remove()
