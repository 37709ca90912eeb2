"""Checks the GPUs of a world: before its ranks start, after a case, and for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_testing.engine.running_world import RunningWorld
from dist_testing.errors import GpuError
from dist_testing.gpus.nccl import check_devices, lack_of_memory, nccl_version, recordings
from dist_testing.spec import Spec

_REPAIR = "See the kernel's log for an Xid, and restart the machine or take the GPU out of CUDA_VISIBLE_DEVICES."


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Problems with the GPUs of a world after a case.

    Attributes:
        memory: One text for each GPU whose memory is still in use.
        faults: Hardware errors that the driver reported during the case. They explain a failure.
        lost: Set if a GPU is gone, also if all ranks passed.
    """

    memory: Sequence[str] = ()
    faults: Sequence[str] = ()
    lost: GpuError | None = None

    @property
    def lost_text(self) -> str:
        """The lost GPU, in a few words; "" if none is lost."""
        return str(self.lost).partition("\n")[0].rstrip(".") if self.lost is not None else ""


def preflight(name: str, world_size: int, spec: Spec) -> str:
    """Check whether the backend can work on these GPUs.

    Returns:
        A warning; "" if there is none.

    Raises:
        UsageError: If it cannot work.
    """
    if not spec.backend.uses_nccl:
        return ""
    check_devices(name, world_size, spec.ranks_per_gpu)
    return lack_of_memory(world_size)


def aftermath(world: RunningWorld) -> Aftermath:
    """Check the GPUs of a world after a case. Once all ranks are gone, wait until their memory is free."""
    if world.gpus is None:
        return Aftermath()
    # Read after every case, so that the next case on the same ranks sees only its own faults.
    faults = world.gpus.hardware_faults()
    if not world.supervisor.is_over:
        return Aftermath(faults=faults)
    try:
        return Aftermath(world.gpus.memory_left(), faults)
    except GpuError as error:
        return Aftermath(faults=faults, lost=error)


def notes(world: RunningWorld, spec: Spec, after: Aftermath) -> tuple[str, ...]:
    """Return more facts that may explain a failure, one per line."""
    lines = [_REPAIR] if after.faults or after.lost is not None else []
    if spec.backend.uses_nccl:
        lines += [
            f"Rank {rank}'s last collectives: {text}." for rank, text in recordings(world.directory, world.size).items()
        ]
        if version := nccl_version():
            lines.append(f"NCCL {version}.")
        if lack := lack_of_memory(world.size):
            lines.append(lack)
    return tuple(lines)
