"""The GPUs of one world: leased before its ranks are asked for, given back when nothing of them is left.

    pool (CUDA_VISIBLE_DEVICES) -> lease -> memory free? -> CUDA_VISIBLE_DEVICES of the ranks -> memory back? -> release

Every rank sees all GPUs of its world, in rank order, and rank r's are those from r * gpus_per_rank on. That is what
torchrun does, and what torch's own code counts on: DeviceMesh takes `LOCAL_RANK` for the device's index, and tests ask
whether one rank's device can reach another's. With a list for each rank alone, every device would be number 0, and
`cuda:{rank}` an error on all ranks but one. (NCCL itself would not mind: it reaches devices that are not in the list.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dist_testing.gpus.devices import gpus_present, visible_gpus
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.lease import Lease, lease_gpus
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.nvml import Nvml
from dist_testing.gpus.vendors import NVIDIA, Vendor
from dist_testing.gpus.xids import XidWatch

__all__ = ["WorldGpus"]


@dataclass(frozen=True, slots=True)
class WorldGpus:
    """GPUs that a world has for itself, all of one vendor.

    Attributes:
        lease: Keeps others away.
        wait_s: How long it took until they could be used, in seconds.
    """

    lease: Lease
    wait_s: float
    _memory: Mapping[Gpu, MemoryUse]
    _xids: XidWatch
    _started_s: float
    _vendor: Vendor
    # Opened once: that takes up to a second for each GPU.
    _nvml: Nvml | None
    _library: contextlib.ExitStack

    @classmethod
    def take(
        cls,
        count: int,
        vendor: Vendor = NVIDIA,
        *,
        limit_s: float,
        on_wait: Callable[[str], None],
        settled: dict[Gpu, int] | None = None,
    ) -> WorldGpus:
        """Wait for GPUs that nobody has, and whose memory is free.

        Args:
            count: How many.
            vendor: Whose.
            limit_s: For all the waiting together, in seconds.
            on_wait: Called with a line for each thing that has to be waited for.
            settled: What earlier worlds have found out of memory that stays in use; see `wait_for_memory`.

        Raises:
            GpuError: If they cannot be had at all, are gone, or have no memory free.
            LeaseTimeoutError: If others kept them until the limit.
        """
        began_s = time.monotonic()
        pool = visible_gpus(gpus_present(vendor=vendor), vendor=vendor).gpus
        lease = lease_gpus(count, pool, limit_s=limit_s, on_wait=on_wait)
        with contextlib.ExitStack() as undo:
            undo.callback(lease.release)
            memory: Mapping[Gpu, MemoryUse] = {}
            library = undo.enter_context(contextlib.ExitStack())
            nvml = library.enter_context(vendor.open_telemetry())
            if nvml is not None:
                left_s = max(0.0, began_s + limit_s - time.monotonic())
                memory = wait_for_memory(nvml, lease.gpus, limit_s=left_s, on_wait=on_wait, settled=settled)
            xids = XidWatch(lease.gpus, nvml)
            library.callback(xids.close)
            world = cls(lease, time.monotonic() - began_s, memory, xids, time.time(), vendor, nvml, library.pop_all())
            undo.pop_all()
        return world

    @property
    def names(self) -> str:
        """The machine's numbers of them: "0, 1"."""
        return ", ".join(str(gpu.index) for gpu in self.lease.gpus)

    def env(self) -> dict[str, str]:
        """What makes the ranks see these GPUs and no others. It replaces whatever the runner has."""
        gpus = self.lease.gpus
        # Of a list that mixes both kinds, CUDA reads those of the first kind and ignores the rest.
        has_uuids = all(gpu.uuid for gpu in gpus)
        names = [gpu.uuid if has_uuids else str(gpu.index) for gpu in gpus]
        return {self._vendor.visible_variable: ",".join(names), **self._vendor.rank_env}

    def release(self) -> None:
        """Give the GPUs back, also for ranks that still hold the lease."""
        self._library.close()
        self.lease.release()

    def abandon(self) -> None:
        """Let go here alone: ranks that could not be ended keep the GPUs, as long as they live."""
        self._library.close()
        self.lease.abandon()

    def hardware_faults(self) -> list[str]:
        """Errors of the hardware that the driver has reported since the last call; empty if nobody tells."""
        return self._xids.hardware_faults()

    def memory_left(self) -> list[str]:
        """What the world, which is over, has not given back. Waits for the driver, which needs a moment.

        Returns:
            One text for each GPU; empty if all memory is back, or nobody tells.

        Raises:
            GpuError: If a GPU is gone.
        """
        if not self._memory or self._nvml is None:
            return []
        return memory_left(self._nvml, self._memory, started_s=self._started_s)
