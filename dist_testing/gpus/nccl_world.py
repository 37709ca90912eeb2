"""What a world on NCCL needs beside its GPUs: a record of its collectives, and facts for a failure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dist_testing.core.engine.hooks import HeldResource, ResourceWish, WorldResource
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.nccl import check_devices, lack_of_memory, nccl_version, recorder_env, recordings


def check(case: Case, spec: Spec) -> None:
    """Refuse the world of a case that NCCL would refuse.

    Raises:
        UsageError: If two ranks share a GPU.
    """
    check_devices(case.name, case.world_size, spec.ranks_per_gpu)


class NcclSupport(WorldResource):
    """Warns once per run if shared memory is short, and gives each world its recorder."""

    def __init__(self) -> None:
        self._has_warned = False

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Return the recorder of a world."""
        if (warning := lack_of_memory(wish.case.world_size)) and not self._has_warned:
            self._has_warned = True
            wish.tell(warning)
        return _Recorder(wish.directory, wish.limit_s)


class _Recorder(HeldResource):
    def __init__(self, directory: Path, limit_s: float) -> None:
        self._directory = directory
        self.defaults = recorder_env(directory, limit_s)

    def explain(self, result: CaseResult) -> CaseResult:
        """Add the last collectives of the ranks, NCCL's version, and the lack of memory."""
        size = result.case.world_size
        lines = [
            *(f"Rank {rank}'s last collectives: {text}." for rank, text in recordings(self._directory, size).items()),
            f"NCCL {version}." if (version := nccl_version()) else "",
            lack_of_memory(size),
        ]
        return dataclasses.replace(result, notes=(*result.notes, *filter(None, lines)))
