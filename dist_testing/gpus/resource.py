"""GPUs as a resource of worlds: leased before the ranks start, looked at after each case, named in failures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from dist_testing.core.engine.hooks import HeldResource, ResourceWish, WorldResource
from dist_testing.core.events.cases import LeaseWaitBegan, LeaseWaitEnded
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import GpuError
from dist_testing.core.ground.outcomes import Cause, Kind, Status, Verdict
from dist_testing.gpus.devices import vendor_named
from dist_testing.gpus.faults import is_hardware_fault
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.world import WorldGpus

# Largest share of a case's limit that it may wait for GPUs, so that the test has time left to run.
_WAIT_SHARE = 0.5
_REPAIR = "See the kernel's log for an Xid, and restart the machine or take the GPU out of CUDA_VISIBLE_DEVICES."


class GpuResource(WorldResource):
    """Leases the GPUs of each world."""

    def __init__(self) -> None:
        self._settled: dict[Gpu, int] = {}

    def acquire(self, wish: ResourceWish) -> HeldGpus | None:
        """Wait for free GPUs.

        Raises:
            GpuError: If there are too few, one is gone, or their memory is in use.
            LeaseTimeoutError: If other processes kept them for half of the case's limit.
        """
        count = wish.spec.gpus(wish.case.world_size)
        vendor = vendor_named(wish.spec.backend.vendor)
        # Ranks that another launcher has started have what it gave them.
        if not count or vendor is None or not wish.isolation.starts_ranks:
            return None
        wish.emit(LeaseWaitBegan(time.monotonic(), wish.number, count))
        names = ""
        try:
            gpus = WorldGpus.take(
                count,
                vendor,
                archs=wish.spec.gpu_archs,
                limit_s=_WAIT_SHARE * wish.limit_s,
                on_wait=wish.tell,
                settled=self._settled,
            )
            names = gpus.names
        finally:
            wish.emit(LeaseWaitEnded(time.monotonic(), wish.number, names))
        return HeldGpus(gpus)


class HeldGpus(HeldResource):
    """The GPUs of one world."""

    def __init__(self, gpus: WorldGpus) -> None:
        self._gpus = gpus
        self._wait_s = gpus.wait_s
        self.env = gpus.env()
        self.fds = gpus.lease.fds
        # Hardware errors that the driver reported during the case.
        self._faults: Sequence[str] = ()

    def check(self, *, are_ranks_gone: bool) -> Sequence[str]:
        """Return the memory that is still in use when the ranks are gone. Waits until it is free."""
        # Read after every case, so that the next case on the same ranks sees only its own faults.
        self._faults = self._gpus.hardware_faults()
        if not are_ranks_gone:
            return ()
        try:
            kept = self._gpus.memory_left()
        except GpuError as error:
            self.loss = error
            return ()
        return [f"GPU memory left behind: {'; '.join(kept)}"] if kept else ()

    def explain(self, result: CaseResult) -> CaseResult:
        """Name the GPUs and the wait for them; blame the machine if one has failed."""
        wait_s, self._wait_s = self._wait_s, 0.0
        names = f"GPUs of the machine: {self._gpus.names}; gpu wait {wait_s:.1f} s."
        lost = str(self.loss).partition("\n")[0].rstrip(".") if self.loss is not None else ""
        return dataclasses.replace(
            result,
            verdict=blame_machine(result.verdict, faults=self._faults, lost=lost),
            facts={**result.facts, "gpus": self._gpus.names, "gpu_wait_s": f"{wait_s:.3f}"},
            notes=(names, *result.notes, *([_REPAIR] if self._faults or lost else [])),
        )

    def release(self, *, are_ranks_gone: bool) -> None:
        """Give the GPUs back; ranks that could not be killed keep them as long as they live."""
        if are_ranks_gone:
            self._gpus.release()
        else:
            self._gpus.abandon()


def blame_machine(found: Verdict, *, faults: Sequence[str], lost: str) -> Verdict:
    """Return the verdict on a case after the driver's report about its GPUs is taken into account.

    Args:
        found: The verdict that follows from the outcomes.
        faults: Hardware errors during the case. They change a failure into a failure of the infrastructure.
        lost: Text about a GPU that is gone; "" if there is none. Such a case is a failure of the infrastructure, even
            if it passed, because no result on that GPU can be trusted. An interrupted case stays interrupted.
    """
    texts = [text for text in (lost, *faults, found.reason) if text]
    if found.cause is Cause.INTERRUPTED or not (lost or (faults and found.status is Status.FAILED)):
        return found
    return dataclasses.replace(found, status=Status.FAILED, cause=Cause.INFRASTRUCTURE, reason="; ".join(texts))


def blame_by_error(result: CaseResult) -> CaseResult:
    """Blame the infrastructure if the culprit's own error says that the hardware is broken."""
    found = result.verdict
    culprit = None if found.culprit is None else result.outcomes[found.culprit]
    if found.cause is not Cause.FAILURE or culprit is None:
        return result
    if culprit.kind is not Kind.RAISED or not is_hardware_fault(culprit.summary):
        return result
    return dataclasses.replace(result, verdict=dataclasses.replace(found, cause=Cause.INFRASTRUCTURE))
