"""Leases the GPUs of each world before its ranks start, and gives them back when all its processes have ended.

    pool (CUDA_VISIBLE_DEVICES) -> lease -> memory free? -> CUDA_VISIBLE_DEVICES of the ranks -> memory back? -> release

Every rank sees all GPUs of its world, in rank order, and rank r uses those from r * gpus_per_rank on, as under
torchrun. torch's own code relies on this: DeviceMesh takes `LOCAL_RANK` for the device's index, and tests ask whether
one rank's device can reach another's. If each rank saw only its own GPUs, every device would be number 0, and
`cuda:{rank}` an error on all ranks but one. (NCCL works with both: it reaches devices that the rank does not see.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence

from dist_testing.core.engine.hooks import HeldResource, ResourceWish, WorldResource
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind, Status, Verdict
from dist_testing.gpus.devices import NVIDIA, VENDORS, Vendor, gpus_present, visible_gpus
from dist_testing.gpus.gpu import Gpu, GpuError
from dist_testing.gpus.lease import Lease, lease_gpus
from dist_testing.gpus.memory import MemoryUse, memory_left, wait_for_memory
from dist_testing.gpus.needs import needs_of
from dist_testing.gpus.nvml import Nvml

_HELD = "All ranks have ended, so the driver or a process that outlived them holds it. The next test would lack it."
_REPAIR = "See the kernel's log for an Xid, and restart the machine or take the GPU out of CUDA_VISIBLE_DEVICES."
# Largest share of a case's limit that it may wait for GPUs, so that the test has time left to run.
_WAIT_SHARE = 0.5
# Texts of `cudaGetErrorString`, complete. Errors that a kernel under test can cause are not among them ("an illegal
# memory access was encountered", "unspecified launch failure", "out of memory"), even if the kernel's log has an Xid.
_CUDA_FAULTS = (
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected during the execution",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
    "system not yet initialized",
    "system has unsupported display driver / cuda driver combination",
)
_CUDA_ERROR = re.compile(r"(?:AcceleratorError|RuntimeError): CUDA error: (.+?)\s*")

# Xid errors of the memory, the links, the bus and the GPU's own processor, by NVIDIA's "Xid Errors" (the catalog) and
# "GPU Memory Error Management". Not among them: errors that a program can cause (13, 31, 43, 45, 68, ...), and 63 and
# 92, which report repaired or corrected memory and end no program.
_XID_FAULTS = {
    48: "memory error that ECC cannot correct",
    64: "memory that cannot be repaired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "memory error that ECC cannot correct, contained",
    95: "memory error that ECC cannot correct, not contained",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "memory error that ECC has not corrected",
}


class GpuResource(WorldResource):
    """Leases the GPUs of each world."""

    def __init__(self) -> None:
        self._settled: dict[Gpu, int] = {}

    def acquire(self, wish: ResourceWish) -> HeldResource | None:
        """Wait for free GPUs."""
        needs, ranks = needs_of(wish.spec), range(wish.case.world_size)
        count = needs.of(len(ranks))
        vendor = VENDORS.get(wish.spec.backend.vendor)
        if not count or vendor is None:
            return None
        held = HeldResource()
        # Ranks that another launcher has started have what it gave them.
        if wish.isolation.starts_ranks:
            held = WorldGpus.take(
                count,
                vendor,
                archs=needs.archs,
                limit_s=_WAIT_SHARE * wish.limit_s,
                on_wait=wish.log_line,
                settled=self._settled,
            )
        held.devices = [rank // needs.ranks_per_gpu * needs.per_rank for rank in ranks]
        return held


class WorldGpus(HeldResource):
    """GPUs that only one world uses, all of one vendor."""

    def __init__(self, lease: Lease, vendor: Vendor) -> None:
        self.lease = lease
        self.fds = lease.fds
        # How long the world has waited for them, in seconds.
        self.wait_s = 0.0
        # The machine's numbers for them, such as "0, 1".
        self.names = ", ".join(str(gpu.index) for gpu in lease.gpus)
        # In a list that mixes UUIDs and numbers, CUDA ignores the entries that are not of the first one's kind.
        has_uuids = all(gpu.uuid for gpu in lease.gpus)
        seen = [gpu.uuid if has_uuids else str(gpu.index) for gpu in lease.gpus]
        self.env = {vendor.visible_variable: ",".join(seen), **vendor.rank_env}
        # Open as long as the world: opening takes up to a second, and a closed library forgets errors.
        self._library = contextlib.ExitStack()
        self._nvml: Nvml | None = None
        # In use before the world, which starts at a time in seconds since the epoch.
        self._memory: Mapping[Gpu, MemoryUse] = {}
        self._started_s = 0.0
        # Hardware errors that the driver reported during the case.
        self._faults: Sequence[str] = ()
        # Whether the last case has left memory in use.
        self._keeps_memory = False

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
        """Wait for free GPUs with free memory, and take them. The arguments are as for the functions that it calls.

        `limit_s` limits all waits together. A GpuError says that there are too few, that one is gone, or that their
        memory is in use; a LeaseTimeoutError, that other processes kept them.
        """
        began_s = time.monotonic()
        pool = visible_gpus(gpus_present(vendor=vendor), vendor=vendor, archs=archs).gpus
        world = cls(lease_gpus(count, pool, limit_s=limit_s, on_wait=on_wait), vendor)
        gpus = world.lease.gpus
        try:
            world._nvml = nvml = world._library.enter_context(vendor.open_telemetry())
            if nvml is not None:
                left_s = max(0.0, began_s + limit_s - time.monotonic())
                world._memory = wait_for_memory(nvml, gpus, limit_s=left_s, on_wait=on_wait, settled=settled)
                nvml.watch_xids([gpu.minor for gpu in gpus])
        except BaseException:
            world.release(are_ranks_gone=True)
            raise
        world._started_s, world.wait_s = time.time(), time.monotonic() - began_s
        return world

    def check(self, *, are_ranks_gone: bool) -> Sequence[str]:
        """Return the memory that is still in use when the ranks are gone. Waits until it is free."""
        if self._nvml is None:
            return ()
        # Read after every case, so that the next case on the same ranks sees only its own faults.
        self._faults = hardware_faults(self._nvml, self.lease.gpus)
        if not are_ranks_gone or not self._memory:
            return ()
        try:
            kept = memory_left(self._nvml, self._memory, started_s=self._started_s)
        except GpuError as error:
            self.loss = error
            return ()
        self._keeps_memory = bool(kept)
        return [f"GPU memory left behind: {'; '.join(kept)}"] if kept else ()

    def explain(self, result: CaseResult) -> CaseResult:
        """Name the GPUs and the wait for them; blame the machine if one has failed."""
        wait_s, self.wait_s = self.wait_s, 0.0
        names = f"GPUs of the machine: {self.names}; gpu wait {wait_s:.1f} s."
        lost = str(self.loss).partition("\n")[0].rstrip(".") if self.loss is not None else ""
        return dataclasses.replace(
            result,
            verdict=blame_machine(result.verdict, faults=self._faults, lost=lost),
            facts={**result.facts, "gpus": self.names, "gpu_wait_s": f"{wait_s:.3f}"},
            notes=(
                names,
                *([_HELD] if self._keeps_memory else []),
                *result.notes,
                *([_REPAIR] if self._faults or lost else []),
            ),
        )

    def release(self, *, are_ranks_gone: bool) -> None:
        """Give the GPUs back; ranks that could not be killed keep them as long as they live."""
        self._library.close()
        self.lease.release(are_ranks_gone=are_ranks_gone)


def blame_machine(found: Verdict, *, faults: Sequence[str], lost: str) -> Verdict:
    """Return the verdict on a case after the driver's report about its GPUs is taken into account.

    Hardware errors during the case, `faults`, change a failure into one of the infrastructure. So does a GPU that is
    gone, `lost`, even if the case passed, because no result on that GPU can be trusted. Interrupted stays interrupted.
    """
    texts = [text for text in (lost, *faults, found.reason) if text]
    if found.cause is Cause.INTERRUPTED or not (lost or (faults and found.status is Status.FAILED)):
        return found
    return dataclasses.replace(found, status=Status.FAILED, cause=Cause.INFRASTRUCTURE, reason="; ".join(texts))


def blame_by_error(result: CaseResult) -> CaseResult:
    """Blame the infrastructure if the culprit's own error says that the hardware, or its driver, is broken."""
    found = result.verdict
    if found.cause is not Cause.FAILURE or found.culprit is None:
        return result
    culprit = result.outcomes[found.culprit]
    error = _CUDA_ERROR.fullmatch(culprit.summary)
    if culprit.kind is not Kind.RAISED or error is None or error[1] not in _CUDA_FAULTS:
        return result
    return dataclasses.replace(result, verdict=dataclasses.replace(found, cause=Cause.INFRASTRUCTURE))


def hardware_faults(nvml: Nvml, gpus: Sequence[Gpu]) -> list[str]:
    """Return one text for each kind of Xid error of watched GPUs, since the last call, that no program can cause."""
    by_minor = {gpu.minor: gpu for gpu in gpus}
    return [
        f"{by_minor[minor]}: Xid {number}, {_XID_FAULTS[number]}"
        for minor, number in dict.fromkeys(nvml.read_xids())
        if number in _XID_FAULTS
    ]
