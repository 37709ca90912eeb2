"""The GPUs of one world: leased before its ranks are asked for, given back when nothing of them is left.

    pool (CUDA_VISIBLE_DEVICES) -> lease -> memory free? -> CUDA_VISIBLE_DEVICES of the ranks -> memory back? -> release

Every rank sees all GPUs of its world, in rank order, and rank r's are those from r * gpus_per_rank on. That is what
torchrun does, and what torch's own code counts on: DeviceMesh takes `LOCAL_RANK` for the device's index, and tests ask
whether one rank's device can reach another's. With a list for each rank alone, every device would be number 0, and
`cuda:{rank}` an error on all ranks but one. (NCCL itself would not mind: it reaches devices that are not in the list.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dist_testing.gpus.devices import Gpu, gpus_present, visible_gpus
from dist_testing.gpus.lease import Lease, lease_gpus
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.nvml import open_nvml

__all__ = ["WorldGpus"]


@dataclass(frozen=True, slots=True)
class WorldGpus:
    """GPUs that a world has for itself.

    Attributes:
        lease: Keeps others away.
        wait_s: How long it took until they could be used, in seconds.
    """

    lease: Lease
    wait_s: float
    _memory: Mapping[Gpu, MemoryUse]
    _started_s: float

    @classmethod
    def take(cls, count: int, *, limit_s: float, on_wait: Callable[[str], None]) -> WorldGpus:
        """Wait for GPUs that nobody has, and whose memory is free.

        Args:
            count: How many.
            limit_s: For all the waiting together, in seconds.
            on_wait: Called with a line for each thing that has to be waited for.

        Raises:
            GpuError: If they cannot be had at all, are gone, or have no memory free.
            LeaseTimeoutError: If others kept them until the limit.
        """
        began_s = time.monotonic()
        pool = visible_gpus(gpus_present()).gpus
        lease = lease_gpus(count, pool, limit_s=limit_s, on_wait=on_wait)
        try:
            memory: Mapping[Gpu, MemoryUse] = {}
            with open_nvml() as nvml:
                if nvml is not None:
                    left_s = max(0.0, began_s + limit_s - time.monotonic())
                    memory = wait_for_memory(nvml, lease.gpus, limit_s=left_s, on_wait=on_wait)
        except BaseException:
            lease.release()
            raise
        return cls(lease, time.monotonic() - began_s, memory, time.time())

    @property
    def names(self) -> str:
        """The machine's numbers of them: "0, 1"."""
        return ", ".join(str(gpu.index) for gpu in self.lease.gpus)

    def env(self) -> dict[str, str]:
        """What makes the ranks see these GPUs and no others. It replaces whatever the runner has."""
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in self.lease.gpus),
            # Of a GPU whose UUID nobody tells the name is a number, and this is the order that it counts in.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def memory_left(self) -> list[str]:
        """What the world, which is over, has not given back. Waits for the driver, which needs a moment.

        Returns:
            One text for each GPU; empty if all memory is back, or nobody tells.

        Raises:
            GpuError: If a GPU is gone.
        """
        if not self._memory:
            return []
        with open_nvml(os.environ) as nvml:
            return [] if nvml is None else memory_left(nvml, self._memory, started_s=self._started_s)
