"""Makes what the worlds of a run share: its folder, with a short path to it, and the launchers."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dist_testing.core.engine.interrupts import raise_again
from dist_testing.core.engine.needs import import_torch
from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.events.event import Event
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.launch.isolation import Isolation
from dist_testing.core.launch.launcher import Launcher, RunContext
from dist_testing.core.rank.capture import open_closed_streams

# The path of a Unix socket has at most 107 bytes. This leaves room for the names that tests and libraries add.
_MAX_PATH_BYTES = 50
_PREFIX = "dist-"
# A file in each folder of a run. The runner and the fork server lock it as long as one of them lives. It also tells the
# folder of a run from a folder of another program with the same prefix.
_LIFE = ".dist-testing-life"


class RunDirectory:
    """The folder that holds all files of a run, and is removed with them.

    Attributes:
        path: The folder, in `TEST_TMPDIR` under Bazel.
        all_paths: The folders to remove at the end.
        short: A path to the same folder that is short enough for sockets. Under Bazel it is a link in a private folder
            in /tmp, which the test encyclopedia allows for this purpose. It is `path` if /tmp cannot be written.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Make the folder. Raise OSError if it cannot be made."""
        self.all_paths: list[str] = []
        self._lives: list[int] = []
        try:
            # $TEST_TMPDIR (Bazel): directory for all temporary files of the run (default: the system's).
            self.path = self.short = self._make(env.get("TEST_TMPDIR"))
            if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
                # In a container /tmp can be read-only. Then only tests that make sockets in the folder fail.
                with contextlib.suppress(OSError):
                    # Only this user can write to the private folder, so no other user can replace the link.
                    short = self._make("/tmp") / "t"
                    short.symlink_to(self.path)
                    self.short = short
        except BaseException:
            self.remove()
            raise

    def _make(self, parent: str | None) -> Path:
        """Make a folder, after removing the folders of dead runs."""
        # `parent` may be relative, and a test may change the folder.
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).absolute()
        self.all_paths.append(str(path))
        _remove_dead(path.parent)
        # Lock the file before it gets the name that other runs look for.
        unborn = path / f"{_LIFE}.new"
        life = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lives.append(life)
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(path / _LIFE)
        return path

    def remove_files(self) -> None:
        """Remove all folders; processes that still use them can leave new files."""
        for path in self.all_paths:
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove all folders, when no process uses them."""
        self.remove_files()
        for life in self._lives:
            os.close(life)
        self._lives = []


def _remove_dead(parent: Path) -> None:
    """Remove the folders of dead runs.

    A run cleans up after itself, also when its runner is killed. It cannot if all its processes are killed at once, as
    Bazel does at the end of a test's time.
    """
    for life in parent.glob(f"{_PREFIX}*/{_LIFE}"):
        # It may be another user's, or of a living run, or another run is removing it now.
        with contextlib.suppress(OSError), open_regular(life, os.O_RDWR) as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(life.parent, ignore_errors=True)


@dataclass(slots=True)
class Launchers:
    """Holds the folder of a run, and one launcher for all isolations with the same `make_launcher`.

    Attributes:
        run: The facts of the run that launchers get, without its folder.
        forks: Number of ranks that the run will fork, as far as it is known.
    """

    run: RunContext
    forks: int = 0
    _made: dict[Callable[[RunContext], Launcher], Launcher] = field(default_factory=dict, init=False)
    _directory: RunDirectory | None = field(default=None, init=False)

    def others(self, emit: Callable[[Event], None]) -> Launchers:
        """Return launchers like these, with a folder of their own, whose worlds can run beside those of these."""
        return Launchers(dataclasses.replace(self.run, emit=emit))

    @property
    def directory(self) -> RunDirectory:
        """The folder of the run. An OSError says that it cannot be made."""
        if self._directory is None:
            self._directory = RunDirectory(os.environ)
        return self._directory

    def of(self, isolation: Isolation) -> Launcher:
        """Return the launcher of an isolation.

        Raises:
            LaunchError: If it cannot be made.
            OSError: If the machine lacks the resources.
            UsageError: If torch cannot be imported.
        """
        if (launcher := self._made.get(isolation.make_launcher)) is None:
            open_closed_streams()
            if self.run.may_fork_runner:
                # Every rank needs it, even if the test file does not import it. The fork server loads it once for all.
                import_torch()
                add_ons()
            folder = self.directory
            run = dataclasses.replace(self.run, directories=folder.all_paths, temp=str(folder.short), forks=self.forks)
            launcher = self._made[isolation.make_launcher] = isolation.make_launcher(run)
            # A signal meanwhile: torch clears its error in an import, and Python at a fork.
            raise_again()
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
