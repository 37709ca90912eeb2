"""Starts a world, and holds the runner's resources for it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from dist_testing.core.engine.hooks import HeldResource, ResourceWish
from dist_testing.core.engine.rank_env import rank_env, threads_per_rank
from dist_testing.core.engine.rank_logs import read_tail
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.engine.run_directory import RunDirectory
from dist_testing.core.engine.supervisor import Supervisor
from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import LaunchError, UsageError
from dist_testing.core.ground.spec import check_world_size as check_range
from dist_testing.core.ground.world import WorldSettings
from dist_testing.core.launch.launcher import Launcher
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import WorldRequest
from dist_testing.core.process.lifetime import current_umask

# Descriptors of the runner per rank: two for the channel and two for stacks, while the world starts.
_FDS_PER_RANK = 4
# Other descriptors: log files, those of pytest and Python.
_FDS_SPARE = 64
# Port of the store in a place of an add-on, which is a network of its own; torchrun's default.
_PLACE_STORE_PORT = 29500
# Share of the case's limit for operations of the group, so that torch gives up before the runner and reports its wait.
_GROUP_SHARE = 0.9
# A rank needs this long to tell the runner so, on a busy machine. Seconds; but at most this share of the limit.
_TELLING_S = 0.75
_LARGEST_TELLING_SHARE = 0.5


@dataclass(slots=True)
class RunningWorld:
    """The ranks of a world, and the runner's resources for them.

    Attributes:
        first: The case that it was started for.
        held: The resources of add-ons, each with the add-on's name, in the order in which they were acquired.
        resources: Closes the board, the channels and the other descriptors.
    """

    first: Case
    supervisor: Supervisor
    board: PhaseBoard
    held: Sequence[tuple[str, HeldResource]]
    resources: contextlib.ExitStack

    def fits(self, case: Case) -> bool:
        """Return whether the ranks can run a case, too."""
        if (case.pool, case.world_size) != (self.first.pool, self.first.world_size):
            return False
        # The limit of the groups is that of the first case.
        if case.timeout_s > self.first.timeout_s:
            return False
        # The other settings are those of a case, and not of its ranks.
        of_worlds = [add_on.name for add_on in add_ons() if add_on.resource or add_on.place]
        return all(case.settings.get(name) == self.first.settings.get(name) for name in of_worlds)

    def log_tail(self, rank: int) -> str:
        """Return the end of a rank's output; "" if the rank has not opened its file."""
        return read_tail(self.supervisor.logs[rank])

    def close(self) -> None:
        """Release the runner's resources. The ranks must be gone; one that could not be killed may keep what it has."""
        self.resources.close()
        release(self.held, are_ranks_gone=self.supervisor.is_over)

    def check(self) -> list[str]:
        """Look at the resources after a case. Return what the ranks have left behind in them."""
        left: list[str] = []
        for name, held in self.held:
            with blaming(name, "the check of its resource"):
                left += held.check(are_ranks_gone=self.supervisor.is_over)
        return left


def release(held: Sequence[tuple[str, HeldResource]], *, are_ranks_gone: bool) -> None:
    """Give resources back, the last one first, whatever happens."""
    with contextlib.ExitStack() as releasing:
        for name, one in held:
            releasing.enter_context(blaming(name, "the release of its resource"))
            releasing.callback(one.release, are_ranks_gone=are_ranks_gone)


def start_world(
    launcher: Launcher,
    wish: ResourceWish,
    number: int,
    run: RunDirectory,
    limit_s: float,
    held: Sequence[tuple[str, HeldResource]],
    *,
    neighbours: int,
    taking_part: Sequence[AddOn],
) -> RunningWorld:
    """Ask the launcher for the ranks of a world, whose first case has a limit of `limit_s` seconds.

    The held resources are released with the world, also if it cannot start. `neighbours` is the number of worlds that
    share the CPUs, with this one. `taking_part` are the add-ons of the world.

    Raises:
        LaunchError: If the launcher is gone, or ranks could not reach each other.
    """
    case, spec, isolation, directory = wish.case, wish.spec, wish.isolation, wish.directory
    size = case.world_size
    place = next((add_on.name for add_on in taking_part if add_on.place), "")
    of_place = dict(held).get(place, HeldResource())
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        undo.callback(release, held, are_ranks_gone=True)
        (directory / "temp").mkdir(parents=True)
        fds = []
        channels = []
        for _ in range(size):
            mine, other = socket.socketpair()
            # Else a read that must not block waits for the limit of `socket.setdefaulttimeout`.
            mine.settimeout(None)
            channels.append(ours.enter_context(mine))
            fds.append(theirs.enter_context(other).fileno())
        stacks_fds = {}
        for rank in range(size):
            # Stacks come from it, packet by packet, and so does the rank's ledger when the runner asks for it.
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            near.setblocking(False)
            stacks_fds[rank] = ours.enter_context(near).fileno()
            fds.append(theirs.enter_context(far).fileno())
        board_fd = PhaseBoard.create(size)
        theirs.callback(os.close, board_fd)
        fds.append(board_fd)
        board = PhaseBoard(board_fd, size)
        ours.callback(board.close)
        store_port = 0
        # Threads share a store in memory. The environment cannot tell them their ranks, which another store would need.
        if case.with_store and place:
            store_port = _PLACE_STORE_PORT
        elif case.with_store and not isolation.in_process:
            # The runner binds the port once and keeps it until the world is over, so no other process can take it.
            store = ours.enter_context(socket.create_server((isolation.host, 0), backlog=2 * size))
            _check_reachable(case.name, store.getsockname())
            store_port = store.getsockname()[1]
            fds.append(store.fileno())
        held_fds = [fd for _, one in held for fd in one.fds]
        fds += held_fds
        backend_env = dict(spec.backend.env)
        device_env: dict[str, str] = {}
        for _, one in held:
            backend_env |= one.defaults
            device_env |= one.env
        launcher.start(
            WorldRequest(
                world=number,
                size=size,
                body=case.body,
                directory=str(directory),
                env=rank_env(
                    os.environ,
                    world_size=size * neighbours,
                    backend_env=backend_env,
                    device_env=device_env,
                    scratch=os.environ.get("TEST_TMPDIR"),
                    temp=str(run.short / str(number) / "temp"),
                ),
                cwd=os.getcwd(),
                umask=current_umask(),
                # Threads of one process share its thread pool.
                threads=threads_per_rank(neighbours if isolation.in_process else size * neighbours),
                pool=bool(case.pool),
                fresh=isolation.fresh_interpreter,
                in_process_of=isolation.in_process_of,
                debug_rank=case.debug_rank,
                store_port=store_port,
                place=place,
                places=tuple(of_place.places),
                host=of_place.host,
                services=tuple(add_on.name for add_on in taking_part if add_on.rank_service),
                held_fds=len(held_fds),
                settings=WorldSettings(
                    backend=spec.backend,
                    timeout_s=group_limit_s(limit_s),
                    init=case.init,
                    devices=tuple(chain.from_iterable(one.devices for _, one in held)),
                ),
            ),
            fds,
        )
        records = [RankRecord(rank, channel, board) for rank, channel in enumerate(channels)]
        supervisor = Supervisor(
            launcher, number, records, directory, stacks_fds, group_limit_s(limit_s), isolation.in_process_of
        )
        undo.pop_all()
        return RunningWorld(case, supervisor, board, held, ours.pop_all())


def _check_reachable(name: str, address: tuple[str, int]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            # It sends nothing: the kernel looks for a route.
            probe.connect(address)
        except OSError as error:
            raise LaunchError(
                f"{name}: ranks cannot meet at {address[0]}: {error.strerror}.\n"
                "The loopback interface may be down, as in a new network namespace or a container without a network.\n"
                "Bring it up, for example by `ip link set lo up`."
            ) from error


def group_limit_s(limit_s: float) -> float:
    """Return the limit of a default group's operations, for a case with a limit of `limit_s`; both in seconds."""
    before_s = min(max((1 - _GROUP_SHARE) * limit_s, _TELLING_S), _LARGEST_TELLING_SHARE * limit_s)
    return limit_s - before_s


def check_world_size(name: str, value: object) -> int:
    """Check the size of a world that a user gave for a case, and return it.

    Raises:
        UsageError: If the size is not a number in range, or needs more files than this process may open.
    """
    world_size = check_range(name, value, "Set world_size in the marker, the class or the BUILD file.")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS_PER_RANK * world_size + _FDS_SPARE
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise UsageError(
            f"{name}: a world of {world_size} ranks needs about {needed} open files; the limit is {limit}.\n"
            "Each rank has a channel to the runner and one for its stacks.\n"
            "Raise the limit with `ulimit -n`, or ask for a smaller world."
        )
    return world_size
