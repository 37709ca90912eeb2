"""The messages that make worlds and end them, between the runner and fork servers.

    runner       --- ForkServerOrder --->    fork server     (descriptors travel beside a request for a world)
    runner       <-- ForkServerEvent ----    fork server
    any process  --- FreshProgram ------->   the fresh interpreter that it starts

The messages about a case, between the runner and a rank, are in `core.process.rank_messages`.

A field is declared here once; `core.ground.codec` derives its format and its checks from the annotation.
Raise the schema number of a family with every change of one of its messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias, get_args

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.spec import MAX_WORLD_SIZE
from dist_testing.core.ground.world import WorldSettings

_Rank = Annotated[int, range(MAX_WORLD_SIZE)]
_WorldNumber = Annotated[int, range(1 << 31)]
# The largest pid of Linux is 2 to the power of 22.
_Pid = Annotated[int, range(1, 1 << 31)]
_Fd = Annotated[int, range(1 << 31)]
_Port = Annotated[int, range(1 << 16)]
_SignalNumber = Annotated[int, range(1, 65)]
# As in `subprocess`: a negative code is a signal. 256 is `core.ground.outcomes.UNKNOWN_EXIT_CODE`.
_EndOfProcess = Annotated[int, range(-64, 257)]
_Natural = Annotated[int, range(1 << 62)]


@dataclass(frozen=True, slots=True)
class WorldRequest:
    """Ask for a world. Holds all facts that its ranks cannot inherit from the fork server, which is older.

    Attributes:
        world: Number of the world in this run.
        size: Number of ranks.
        body: The case; of a worker pool, its first case.
        directory: The world's own folder, in which the ranks make `rank-<r>.log`.
        env: The whole environment of a rank, except the variables that differ from rank to rank.
        cwd: Working directory.
        umask: File mode creation mask.
        threads: Intra-op threads of a rank; 0 leaves the number to torch.
        pool: Whether the ranks form a worker pool, so that a case must not leave changes behind in them.
        fresh: Whether each rank is a fresh interpreter.
        in_process_of: Name of the add-on that runs the ranks as threads of one process; "" if each is a process.
        store_port: Port of the store; 0 for no store. Its listening socket travels with the request, unless the
            place makes it.
        settings: Backend, device and limits of the world.
        debug_rank: The rank that gets the terminal; None for none.
        held_fds: Number of lease descriptors, the last ones, which hold the world's GPUs.
        places: The group of each rank, by rank, as torchrun counts them; empty if all are in one.
        host: Address at which the ranks find the store; "" for this machine alone.
        services: Names of the add-ons that have a service on the ranks.
        place: Name of the add-on that makes the place of the ranks; "" for this machine as it is.
        own_ranks: The ranks that this fork server makes; empty for all. Descriptors travel for these ranks only.
        keeps_env: Whether the ranks keep the environment of the fork server, and `env` holds only what is set on top.
        removed_env: Variables that they do not keep.
        default_env: Values for variables that the fork server does not have.
    """

    world: _WorldNumber
    size: Annotated[int, range(MAX_WORLD_SIZE + 1)]
    body: CaseBody
    directory: str
    env: dict[str, str]
    cwd: str
    umask: Annotated[int, range(0o10000)]
    threads: Annotated[int, range(1 << 16)]
    pool: bool
    fresh: bool
    in_process_of: str
    store_port: _Port
    settings: WorldSettings
    debug_rank: _Rank | None = None
    held_fds: Annotated[int, range(1 << 16)] = 0
    places: tuple[_Rank, ...] = ()
    host: str = ""
    place: str = ""
    services: tuple[str, ...] = ()
    own_ranks: tuple[_Rank, ...] = ()
    keeps_env: bool = False
    removed_env: tuple[str, ...] = ()
    default_env: dict[str, str] = field(default_factory=dict)

    @property
    def made_ranks(self) -> Sequence[int]:
        """The ranks that the fork server makes."""
        return self.own_ranks or range(self.size)

    @property
    def layout(self) -> Layout:
        """The places of the ranks."""
        return Layout(self.size, self.places, self.host)

    @property
    def brings_store(self) -> bool:
        """Whether the listening socket of the store travels with the request."""
        return self.store_port > 0 and not self.place and 0 in self.made_ranks

    @property
    def fd_count(self) -> int:
        """Number of descriptors with the request: two per rank, the board, the store if it brings it, the leases."""
        return 2 * len(self.made_ranks) + 1 + self.brings_store + self.held_fds

    def in_env(self, own: Mapping[str, str]) -> WorldRequest:
        """Return the request with the whole environment, for a fork server whose own environment is `own`."""
        if not self.keeps_env:
            return self
        kept = {name: value for name, value in own.items() if name not in self.removed_env}
        return dataclasses.replace(self, env={**self.default_env, **kept, **self.env}, keeps_env=False)

    def start_of(self, rank: int, fds: Sequence[int], fork_server_pid: int) -> RankStart:
        """Return the start parameters of a rank. The descriptors are in the order of `Launcher.start`."""
        count = len(self.made_ranks)
        at = self.made_ranks.index(rank)
        board, *rest = fds[2 * count :]
        store = rest.pop(0) if self.brings_store else None
        return RankStart(
            self,
            rank,
            fds[at],
            fds[count + at],
            board,
            store if rank == 0 else None,
            fork_server_pid,
            tuple(rest),
        )


def log_name(rank: int) -> str:
    """Return the name of the file in the folder of a world that takes the output of a rank."""
    return f"rank-{rank}.log"


def text_name(rank: int) -> str:
    """Return the name of the file there that takes the texts of a rank that are too long for a message."""
    return f"rank-{rank}.texts"


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send a signal to those of the ranks of the running world that still run."""

    ranks: tuple[_Rank, ...]
    number: _SignalNumber


@dataclass(frozen=True, slots=True)
class WorldExtra:
    """A message between the parts of an add-on: from its watcher to its place, or back.

    Attributes:
        add_on: Its name.
        payload: Only the add-on reads it.
    """

    world: _WorldNumber
    add_on: str
    payload: str


@dataclass(frozen=True, slots=True)
class WorldStarted:
    """The ranks of a world have processes.

    Attributes:
        pids: Pid of each rank, by rank; without the ranks that could not be started. None for a process that this
            machine does not know, because it is on another node.
    """

    world: _WorldNumber
    pids: tuple[_Pid | None, ...]


@dataclass(frozen=True, slots=True)
class WorldRefused:
    """A rank could not be started.

    Attributes:
        rank: The first rank without a process.
        text: Why: the system's error, its cause and the way out.
    """

    world: _WorldNumber
    rank: _Rank
    text: str


@dataclass(frozen=True, slots=True)
class RankEnded:
    """The process of a rank has ended.

    Attributes:
        exit_code: Its exit code; a negative number is a signal, as in `subprocess`.
        reason: Why the runner has lost the rank, if its exit code is not known; "" if only that it has ended is known.
    """

    world: _WorldNumber
    rank: _Rank
    exit_code: _EndOfProcess
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorldOver:
    """Nothing of a world is left. `leaked` are command lines of orphan processes that the ranks left behind."""

    world: _WorldNumber
    leaked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unfit:
    """The fork server cannot serve any world. The text says why, for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Idle work of the fork server has an event for the run, as JSON; `core.events.event` reads it."""

    event: str


@dataclass(frozen=True, slots=True)
class Loader:
    """How a fresh interpreter finds the tests again.

    Attributes:
        module: A module of a front end, with a function `load(state, then, test)`. It collects or imports the tests,
            calls `then` with the rank context, and does not return.
        state: First argument of that function; only the front end reads it.
        import_first: Modules to import before `module`, as the runner did.
        argv: The `sys.argv` of the runner, which test files may read.
    """

    module: str
    state: str
    import_first: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankStart:
    """The start parameters of one rank.

    Attributes:
        request: The part that all ranks of the world share.
        rank: Number of the rank.
        channel_fd: The rank's end of its channel to the runner.
        stacks_fd: Receives the rank's stacks when the runner asks for them.
        board_fd: The board to which the rank writes its phase.
        store_fd: The listening socket of the world's store, on rank 0 only.
        fork_server_pid: The parent, with which the rank dies.
        held_fds: Only held open: the world keeps its GPUs until its last rank has ended.
        place_fds: Descriptors of the rank's place, as the add-on of the place takes them; empty if the rank is there.
    """

    request: WorldRequest
    rank: _Rank
    channel_fd: _Fd
    stacks_fd: _Fd
    board_fd: _Fd
    store_fd: _Fd | None
    fork_server_pid: _Pid
    held_fds: tuple[_Fd, ...] = ()
    place_fds: tuple[_Fd, ...] = ()

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors of this rank."""
        given = (self.channel_fd, self.stacks_fd, self.board_fd, self.store_fd, *self.held_fds, *self.place_fds)
        return tuple(fd for fd in given if fd is not None)


@dataclass(frozen=True, slots=True)
class FreshRank:
    """Be a rank, in a fresh interpreter. The loader finds its test."""

    start: RankStart
    loader: Loader


@dataclass(frozen=True, slots=True)
class FreshForkServer:
    """Be the fork server, in a fresh interpreter.

    Attributes:
        control_fd: Its end of the connection to the runner.
        runner_fd: A pidfd of the runner.
        run_directories: Folders of the run, which it removes if the runner is killed.
        forks: Number of ranks that the run will fork, as far as the runner knows.
    """

    control_fd: _Fd
    runner_fd: _Fd
    run_directories: tuple[str, ...]
    loader: Loader
    forks: _Natural = 0


ForkServerOrder: TypeAlias = WorldRequest | SignalRanks | WorldExtra
FORK_SERVER_ORDERS: Family[ForkServerOrder] = Family("order to the fork server", 9, get_args(ForkServerOrder))

# The events of every launcher.
LauncherEvent: TypeAlias = WorldStarted | WorldRefused | RankEnded | WorldExtra | WorldOver
ForkServerEvent: TypeAlias = LauncherEvent | RunEvent | Unfit
FORK_SERVER_EVENTS: Family[ForkServerEvent] = Family("event of the fork server", 5, get_args(ForkServerEvent))

FreshProgram: TypeAlias = FreshRank | FreshForkServer
FRESH_PROGRAMS: Family[FreshProgram] = Family("order to a fresh interpreter", 10, get_args(FreshProgram))
