"""Ranks that SIGKILL does not end: they are named within a limit, and keep their GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dist_testing.core.engine.hooks import CaseStart
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.engine.supervisor import Supervisor
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import LauncherEvent, WorldRequest
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, LeaseTimeoutError
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.forks import forked

_SIZE = 2


class UnkillableLauncher:
    """A launcher that reports no events: the kernel holds its ranks in a device that does not answer."""

    unclean_reasons: Sequence[str] = ()

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.signals: list[tuple[list[int], int]] = []

    def fileno(self) -> int:
        """Return a descriptor that never becomes readable."""
        return self._ours.fileno()

    def start(self, request: WorldRequest, fds: Sequence[int]) -> None:
        """Do nothing: the ranks exist already."""

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Record the signal."""
        self.signals.append((list(ranks), number))

    def events(self) -> Iterator[LauncherEvent]:
        """Return no events."""
        return iter(())

    def close(self) -> None:
        """Close the sockets."""
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def launcher() -> Iterator[UnkillableLauncher]:
    """The launcher of the ranks."""
    launcher = UnkillableLauncher()
    yield launcher
    launcher.close()


@pytest.fixture
def world(launcher: UnkillableLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningWorld]:
    """A world whose ranks have begun a case, with the machine's only GPU; the test closes it."""
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / name).touch()
    monkeypatch.setenv(NODES_VARIABLE, str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("dist_testing.core.engine.supervisor._KILL_LIMIT_S", 0.0)
    fd = PhaseBoard.create(_SIZE)
    board = PhaseBoard(fd, _SIZE)
    os.close(fd)
    pairs = [socket.socketpair() for _ in range(_SIZE)]
    records = [RankRecord(rank, ours, board) for rank, (ours, _) in enumerate(pairs)]
    resources = contextlib.ExitStack()
    resources.callback(board.close)
    for ours, _ in pairs:
        resources.callback(ours.close)
    gpus = WorldGpus.take(1, limit_s=0.0, on_wait=lambda _: None)
    case = Case("case", _SIZE, CaseBody("pytest"), 60.0, FORK.name)
    supervisor = Supervisor(launcher, 1, records, tmp_path, {}, math.inf)
    world = RunningWorld(case, supervisor, board, [("gpus", gpus)], resources)
    world.supervisor.begin_case(
        CaseStart(case, time.monotonic(), keeps_ranks=False), 60.0, latest_s=math.inf, body=None
    )
    yield world
    for _, theirs in pairs:
        theirs.close()


def test_the_wait_for_unkillable_ranks_has_a_limit(world: RunningWorld, launcher: UnkillableLauncher) -> None:
    """If this fails, a rank in a broken device stops the run for ever, and the user does not learn which."""
    world.supervisor.records[0].pid = os.getpid()
    said = (
        rf"Rank\(s\) 0 \(pid {os.getpid()}, R \(running\)\), 1 \(pid None, state unknown\) could not be killed within"
    )
    with pytest.raises(LaunchError, match=said) as caught:
        world.supervisor.abort()
    assert len(str(caught.value).splitlines()) == 3
    assert launcher.signals == [([0, 1], signal.SIGKILL)]
    assert not world.supervisor.is_over
    world.close()


def test_unkillable_ranks_keep_their_gpus_until_they_end(world: RunningWorld) -> None:
    """If this fails, the next test starts on a GPU that is in use."""
    gpus = gpus_present()
    with forked():
        # The child holds the lease, as such a rank does.
        world.close()
        with pytest.raises(LeaseTimeoutError):
            lease_gpus(1, gpus, limit_s=0.0)
    lease_gpus(1, gpus, limit_s=0.0).release()
