"""What a run tells the watcher."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family


@dataclass(frozen=True, slots=True)
class Imported:
    """A run has imported files, or has tried to."""

    files: tuple[str, ...]  # all files whose change concerns the tests, without third-party ones
    test_files: tuple[str, ...]  # files with tests or with errors


@dataclass(frozen=True, slots=True)
class Reported:
    """A test of a run has ended, or a file could not be collected."""

    node_id: str  # its node id
    outcome: str  # "passed", "failed" or "skipped"


@dataclass(frozen=True, slots=True)
class Finished:
    """The session of a run is over. `code` is its exit code."""

    code: int


WatchEvent = Imported | Reported | Finished

WATCH_EVENTS: Family[WatchEvent] = Family("event of the watch mode", 2, (Imported, Reported, Finished))
