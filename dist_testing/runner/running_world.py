"""A world that has been asked for, and everything that the runner holds for it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_testing.errors import UsageError
from dist_testing.launch.fork import ForkLauncher
from dist_testing.launch.wire import WorldRequest
from dist_testing.rank.board import PhaseBoard
from dist_testing.rank.environment import LOOPBACK
from dist_testing.runner.case import Case
from dist_testing.runner.rank_env import rank_env, threads_per_rank
from dist_testing.runner.ranks import RankRecord
from dist_testing.runner.run_directory import RunDirectory
from dist_testing.runner.supervisor import Supervisor
from dist_testing.spec import MAX_WORLD_SIZE, Spec
from dist_testing.world import WorldSettings

__all__ = ["RunningWorld", "check_world_size", "start_world"]

# Descriptors that the runner holds per rank: its channel and the rank's stacks, both ends while the world is started.
_FDS_PER_RANK = 4
# And beside the ranks: log files, pytest's, Python's own.
_FDS_SPARE = 64
# Of the case's limit, for operations of the group: so that torch gives up before the runner does and says what it
# waited for.
_GROUP_SHARE = 0.9


@dataclass(slots=True)
class RunningWorld:
    """A world's ranks, from the runner's side.

    Attributes:
        pool: Name of the pool that they are; "" if they live for one case.
        supervisor: Watches them.
        directory: The world's folder.
    """

    pool: str
    supervisor: Supervisor
    directory: Path
    stacks_fds: Mapping[int, int]
    board: PhaseBoard
    store: socket.socket | None

    @property
    def size(self) -> int:
        """Ranks in the world."""
        return len(self.supervisor.records)

    def close(self) -> None:
        """Close what the runner holds. The ranks must be gone."""
        for fd in self.stacks_fds.values():
            os.close(fd)
        for record in self.supervisor.records:
            record.channel.close()
        self.board.close()
        if self.store is not None:
            self.store.close()


def start_world(
    launcher: ForkLauncher, number: int, case: Case, spec: Spec, run: RunDirectory, limit_s: float
) -> RunningWorld:
    """Ask the launcher for the ranks of a case.

    Args:
        launcher: Who makes them.
        number: Of the world, in this run.
        case: Their first case.
        spec: What the target asks for.
        run: Where the world's folder is made.
        limit_s: How long the case may take.

    Raises:
        LaunchError: If the launcher is gone.
    """
    size = case.world_size
    directory = run.path / str(number)
    (directory / "temp").mkdir(parents=True)
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        fds = []
        channels = []
        for _ in range(size):
            mine, other = socket.socketpair()
            channels.append(ours.enter_context(mine))
            fds.append(theirs.enter_context(other).fileno())
        stacks_fds = {}
        for rank in range(size):
            stacks_fds[rank], write = os.pipe()
            ours.callback(os.close, stacks_fds[rank])
            theirs.callback(os.close, write)
            fds.append(write)
        board_fd = PhaseBoard.create(size)
        theirs.callback(os.close, board_fd)
        fds.append(board_fd)
        board = PhaseBoard(board_fd, size)
        ours.callback(board.close)
        store = None
        if case.with_store:
            # Bound once and kept until the world is over: the port is never free for anybody else.
            store = ours.enter_context(socket.create_server((LOOPBACK, 0), backlog=2 * size))
            fds.append(store.fileno())
        launcher.start(
            WorldRequest(
                world=number,
                size=size,
                body=case.body,
                directory=str(directory),
                env=rank_env(
                    os.environ,
                    world_size=size,
                    backend_env=spec.backend.env,
                    scratch=os.environ.get("TEST_TMPDIR"),
                    temp=str(run.short / str(number) / "temp"),
                ),
                cwd=os.getcwd(),
                umask=_umask(),
                threads=threads_per_rank(size),
                pool=bool(case.pool),
                fresh=case.isolation == "spawn",
                store_port=store.getsockname()[1] if store else 0,
                settings=WorldSettings(
                    backend=spec.backend.torch_backend,
                    device=spec.backend.device,
                    gpus_per_rank=spec.gpus_per_rank,
                    register_module=spec.backend.register_module,
                    timeout_s=max(1.0, _GROUP_SHARE * limit_s),
                    init=case.init,
                ).to_json(),
            ),
            fds,
        )
        records = [RankRecord(rank, channel, board) for rank, channel in enumerate(channels)]
        supervisor = Supervisor(launcher, number, records, stacks_fds)
        ours.pop_all()
    return RunningWorld(case.pool, supervisor, directory, stacks_fds, board, store)


def check_world_size(name: str, world_size: int) -> None:
    """Refuse a world that cannot be, before anything is started.

    Raises:
        UsageError: If the size is out of bounds, or beyond what this process may open.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise UsageError(
            f"{name}: world_size = {world_size}; expected 1 to {MAX_WORLD_SIZE}.\n"
            "A world has at least one rank, and no machine runs more than that.\n"
            "Set world_size in the marker, the class or the BUILD file."
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS_PER_RANK * world_size + _FDS_SPARE
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise UsageError(
            f"{name}: a world of {world_size} ranks needs about {needed} open files; the limit is {limit}.\n"
            "Each rank has a channel to the runner and one for its stacks.\n"
            "Raise the limit with `ulimit -n`, or ask for a smaller world."
        )


def _umask() -> int:
    # It can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
