"""Leases the GPUs of each world, and blames the machine for errors that only broken hardware causes."""

from __future__ import annotations

import dataclasses

from dist_testing.core.engine.hooks import ResourceWish, WorldResource
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind
from dist_testing.gpus.devices import vendor_named
from dist_testing.gpus.faults import is_hardware_fault
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.world_gpus import WorldGpus

# Largest share of a case's limit that it may wait for GPUs, so that the test has time left to run.
_WAIT_SHARE = 0.5


class GpuResource(WorldResource):
    """Leases the GPUs of each world."""

    def __init__(self) -> None:
        self._settled: dict[Gpu, int] = {}

    def acquire(self, wish: ResourceWish) -> WorldGpus | None:
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
        return WorldGpus.take(
            count,
            vendor,
            archs=wish.spec.gpu_archs,
            limit_s=_WAIT_SHARE * wish.limit_s,
            on_wait=wish.log_line,
            settled=self._settled,
        )


def blame_by_error(result: CaseResult) -> CaseResult:
    """Blame the infrastructure if the culprit's own error says that the hardware is broken."""
    found = result.verdict
    culprit = None if found.culprit is None else result.outcomes[found.culprit]
    if found.cause is not Cause.FAILURE or culprit is None:
        return result
    if culprit.kind is not Kind.RAISED or not is_hardware_fault(culprit.summary):
        return result
    return dataclasses.replace(result, verdict=dataclasses.replace(found, cause=Cause.INFRASTRUCTURE))
