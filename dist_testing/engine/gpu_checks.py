"""What the runner looks at where a world has GPUs: before its ranks start, when a case is over, and for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_testing.engine.running_world import RunningWorld
from dist_testing.errors import GpuError
from dist_testing.gpus.nccl import check_devices, lack_of_memory, nccl_version, recordings
from dist_testing.spec import Spec

__all__ = ["Aftermath", "aftermath", "notes", "preflight"]

_REPAIR = "See the kernel's log for an Xid, and restart the machine or take the GPU out of CUDA_VISIBLE_DEVICES."


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What is wrong with a world's GPUs when a case is over.

    Attributes:
        memory: What has not come back, a text for each GPU.
        faults: Errors of the hardware that the driver has reported meanwhile. They explain a failure.
        lost: Set if a GPU is gone, whatever the ranks say.
    """

    memory: Sequence[str] = ()
    faults: Sequence[str] = ()
    lost: GpuError | None = None

    @property
    def lost_text(self) -> str:
        """Which GPU is gone, in a few words; "" if none is."""
        return str(self.lost).partition("\n")[0].rstrip(".") if self.lost is not None else ""


def preflight(name: str, world_size: int, spec: Spec) -> str:
    """Look for what would make the backend fail.

    Args:
        name: Of the case.
        world_size: Its ranks.
        spec: What the target asks for.

    Returns:
        A warning; "" if nothing is known.

    Raises:
        UsageError: If it cannot work at all.
    """
    if not spec.backend.uses_nccl:
        return ""
    check_devices(name, world_size, spec.ranks_per_gpu)
    return lack_of_memory(world_size)


def aftermath(world: RunningWorld) -> Aftermath:
    """Look at the GPUs of a world after a case. Waits for memory that is on its way back, once all ranks are gone."""
    if world.gpus is None:
        return Aftermath()
    # Every time, so that nothing is left over for the next case on the same ranks.
    faults = world.gpus.hardware_faults()
    if not world.supervisor.is_over:
        return Aftermath(faults=faults)
    try:
        return Aftermath(world.gpus.memory_left(), faults)
    except GpuError as error:
        return Aftermath(faults=faults, lost=error)


def notes(world: RunningWorld, spec: Spec, after: Aftermath) -> tuple[str, ...]:
    """What else may explain a failure, line by line."""
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
