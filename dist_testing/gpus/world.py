"""Leases the GPUs of one world before its ranks start, and gives them back when all its processes have ended.

    pool (CUDA_VISIBLE_DEVICES) -> lease -> memory free? -> CUDA_VISIBLE_DEVICES of the ranks -> memory back? -> release

Every rank sees all GPUs of its world, in rank order, and rank r uses those from r * gpus_per_rank on, as under
torchrun. torch's own code relies on this: DeviceMesh takes `LOCAL_RANK` for the device's index, and tests ask whether
one rank's device can reach another's. If each rank saw only its own GPUs, every device would be number 0, and
`cuda:{rank}` an error on all ranks but one. (NCCL works with both: it reaches devices that the rank does not see.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dist_testing.gpus.devices import NVIDIA, Vendor, gpus_present, visible_gpus
from dist_testing.gpus.faults import XidWatch
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.lease import Lease, lease_gpus
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.nvml import Nvml


@dataclass(frozen=True, slots=True)
class WorldGpus:
    """GPUs that only one world uses, all of one vendor.

    Attributes:
        lease: The lease on them.
        wait_s: How long the world has waited for them, in seconds.
    """

    lease: Lease
    wait_s: float
    _memory: Mapping[Gpu, MemoryUse]
    _xids: XidWatch
    _started_s: float
    _vendor: Vendor
    # Open as long as the world: to open it takes up to a second for each GPU.
    _nvml: Nvml | None
    _library: contextlib.ExitStack

    @classmethod
    def take(
        cls,
        count: int,
        vendor: Vendor = NVIDIA,
        *,
        archs: Sequence[str] = (),
        limit_s: float,
        on_wait: Callable[[str], None],
        settled: dict[Gpu, int] | None = None,
    ) -> WorldGpus:
        """Wait for free GPUs with free memory, and take them.

        Args:
            count: How many.
            vendor: Their vendor.
            archs: Their possible architectures, such as "sm_90"; empty for any.
            limit_s: Limit of all waits together, in seconds.
            on_wait: Called with one line for each wait that begins.
            settled: Memory that stays in use, as earlier worlds have found; see `wait_for_memory`.

        Raises:
            GpuError: If there are too few, one is gone, or their memory is in use.
            LeaseTimeoutError: If other processes kept them until the limit.
        """
        began_s = time.monotonic()
        pool = visible_gpus(gpus_present(vendor=vendor), vendor=vendor, archs=archs).gpus
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
        """Return the machine's numbers for them, such as "0, 1"."""
        return ", ".join(str(gpu.index) for gpu in self.lease.gpus)

    def env(self) -> dict[str, str]:
        """Return the variables with which ranks see only these GPUs. They replace the runner's own."""
        gpus = self.lease.gpus
        # In a list that mixes UUIDs and numbers, CUDA ignores the entries that are not of the first one's kind.
        has_uuids = all(gpu.uuid for gpu in gpus)
        names = [gpu.uuid if has_uuids else str(gpu.index) for gpu in gpus]
        return {self._vendor.visible_variable: ",".join(names), **self._vendor.rank_env}

    def release(self) -> None:
        """Give the GPUs back, also for ranks that still hold the lease."""
        self._library.close()
        self.lease.release()

    def abandon(self) -> None:
        """Close the lease here only: ranks that could not be killed keep the GPUs as long as they live."""
        self._library.close()
        self.lease.abandon()

    def hardware_faults(self) -> list[str]:
        """Return the errors of the hardware since the last call; empty where the driver does not report them."""
        return self._xids.hardware_faults()

    def memory_left(self) -> list[str]:
        """Return the memory that the world has not given back after its end; see `memory.memory_left`."""
        if not self._memory or self._nvml is None:
            return []
        return memory_left(self._nvml, self._memory, started_s=self._started_s)
