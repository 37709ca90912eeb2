"""What the watcher, its warm processes and its runs send to each other."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family


@dataclass(frozen=True, slots=True)
class Preload:
    """Order to a warm process: fork one that imports more modules. Comes with the socket of the new process.

    Attributes:
        modules: Names, in the order of import.
        files: The file that each of them must come from.
        search_path: `sys.path` for these imports.
        may_hold: Whether the modules are third-party code, which may wait for the end of the process.
    """

    modules: tuple[str, ...]
    files: tuple[str, ...]
    search_path: tuple[str, ...]
    may_hold: bool


@dataclass(frozen=True, slots=True)
class LoadConftests:
    """Order to a warm process: fork one that imports the first conftest files. Comes with the new process's socket."""


@dataclass(frozen=True, slots=True)
class RunTests:
    """Order to a warm process: fork a run. Comes with the socket for the events of the run.

    Attributes:
        arguments: Files, folders and node ids that replace those of the command line; empty for the command line's.
        left_out: Test files that are not collected.
        failed: Node ids of the tests that failed last. They come first.
        only_failed: Whether the run leaves out all other tests.
        pattern: Expression for `-k`; "" for none.
        debug_rank: The rank that gets the terminal; None for none.
    """

    arguments: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    only_failed: bool = False
    pattern: str = ""
    debug_rank: int | None = None


@dataclass(frozen=True, slots=True)
class StopRun:
    """Order to a warm process: end the run that it has forked."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A warm process has imported its modules and waits for orders.

    Attributes:
        files: Files of all modules that it has imported, without third-party ones.
        obstacles: Why nothing may be forked from it; empty if it may. Then it ends.
    """

    files: tuple[str, ...]
    obstacles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A process that a warm process has forked has ended, and nothing of it is left.

    Attributes:
        code: Its exit code; for a signal, its negative number.
        is_run: Whether it was a run.
    """

    code: int
    is_run: bool


@dataclass(frozen=True, slots=True)
class Module:
    """A module that a run has imported for its tests.

    Attributes:
        name: Its name in `sys.modules`.
        file: Its file.
        is_third_party: Whether the file belongs to Python or to an installed package.
        is_movable: Whether it may be imported before the conftest files: no plugin of pytest has rewritten it, and its
            import began with the environment variables of the start.
    """

    name: str
    file: str
    is_third_party: bool
    is_movable: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """A run has collected its tests.

    Attributes:
        test_files: Files with tests or with errors.
        node_ids: The tests that it will run.
        modules: What has been imported, in the order of import.
        search_path: `sys.path` at that time.
    """

    test_files: tuple[str, ...]
    node_ids: tuple[str, ...]
    modules: tuple[Module, ...]
    search_path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    """A test of a run has ended, or a file could not be collected.

    Attributes:
        node_id: Its node id.
        outcome: "passed", "failed" or "skipped".
    """

    node_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The session of a run is over. `code` is its exit code."""

    code: int


WatchOrder = Preload | LoadConftests | RunTests | StopRun
WatchEvent = Parked | ChildEnded | Collected | Reported | Finished

WATCH_ORDERS: Family[WatchOrder] = Family(
    "order to a warm process of the watch mode", 1, (Preload, LoadConftests, RunTests, StopRun)
)
WATCH_EVENTS: Family[WatchEvent] = Family(
    "event of the watch mode", 1, (Parked, ChildEnded, Collected, Reported, Finished)
)
