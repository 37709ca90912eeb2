"""Makes the launchers of a run when a case needs them, and closes them together."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable

from dist_testing.launch.isolation import Isolation
from dist_testing.launch.launcher import Launcher, RunContext

__all__ = ["Launchers"]


class Launchers:
    """Holds one launcher for all isolations with the same `make_launcher`."""

    def __init__(self) -> None:
        self._made: dict[Callable[[RunContext], Launcher], Launcher] = {}

    def of(self, isolation: Isolation, run: RunContext) -> Launcher:
        """Return the launcher of an isolation; make it if there is none.

        Raises:
            LaunchError: If it cannot be made.
            OSError: If the machine lacks the resources.
        """
        if (launcher := self._made.get(isolation.make_launcher)) is None:
            # Every rank needs it, even if the test file does not import it. The fork server loads it once for all.
            importlib.import_module("torch.distributed")
            launcher = self._made[isolation.make_launcher] = isolation.make_launcher(run)
        return launcher

    def close(self) -> None:
        """Close all launchers. The next case makes new ones."""
        made, self._made = self._made, {}
        with contextlib.ExitStack() as whatever_happens:
            for launcher in made.values():
                whatever_happens.callback(launcher.close)
