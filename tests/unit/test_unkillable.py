"""A world whose ranks SIGKILL does not end keeps its GPUs. tests/process has the limit of the wait, and its text."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.core.engine.running_world import RunningWorld
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, LeaseTimeoutError
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.forks import forked


def test_unkillable_ranks_keep_their_gpus_until_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the next test starts on a GPU that is in use."""
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / name).touch()
    monkeypatch.setenv(NODES_VARIABLE, str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = gpus_present()
    held = WorldGpus.take(1, limit_s=0.0, on_wait=lambda _: None)
    supervisor: Any = SimpleNamespace(is_over=False)
    board: Any = None
    world = RunningWorld(
        Case("case", 1, CaseBody("pytest"), 60.0, "fork"), supervisor, board, [("gpus", held)], ExitStack()
    )
    with forked():
        # The child holds the lease, as such a rank does.
        world.close()
        with pytest.raises(LeaseTimeoutError):
            lease_gpus(1, gpus, limit_s=0.0)
    lease_gpus(1, gpus, limit_s=0.0).release()
