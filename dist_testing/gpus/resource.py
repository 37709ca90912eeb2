"""Leases the GPUs of each world, and blames the machine for errors that only broken hardware causes."""

from __future__ import annotations

import dataclasses

from dist_testing.core.engine.hooks import HeldResource, ResourceWish, WorldResource
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind
from dist_testing.gpus.devices import vendor_named
from dist_testing.gpus.faults import is_hardware_fault
from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.needs import needs_of
from dist_testing.gpus.world_gpus import WorldGpus

# Largest share of a case's limit that it may wait for GPUs, so that the test has time left to run.
_WAIT_SHARE = 0.5


class GpuResource(WorldResource):
    """Leases the GPUs of each world."""

    def __init__(self) -> None:
        self._settled: dict[Gpu, int] = {}

    def acquire(self, wish: ResourceWish) -> HeldResource | None:
        """Wait for free GPUs.

        Raises:
            GpuError: If there are too few, one is gone, or their memory is in use.
            LeaseTimeoutError: If other processes kept them for half of the case's limit.
        """
        needs, ranks = needs_of(wish.spec), range(wish.case.world_size)
        count = needs.of(len(ranks))
        vendor = vendor_named(wish.spec.backend.vendor)
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


def blame_by_error(result: CaseResult) -> CaseResult:
    """Blame the infrastructure if the culprit's own error says that the hardware is broken."""
    found = result.verdict
    culprit = None if found.culprit is None else result.outcomes[found.culprit]
    if found.cause is not Cause.FAILURE or culprit is None:
        return result
    if culprit.kind is not Kind.RAISED or not is_hardware_fault(culprit.summary):
        return result
    return dataclasses.replace(result, verdict=dataclasses.replace(found, cause=Cause.INFRASTRUCTURE))
