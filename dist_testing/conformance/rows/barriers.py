"""Section 10 of the contract: barriers."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script


def _witnessed(k: Kit, members: int, barrier: Any) -> None:
    """No rank leaves before all have come: a counter of the store is the witness."""
    for number in range(3):
        key = k.key(f"arrived/{number}")
        if k.rank == k.size - 1:
            time.sleep(0.03)
        k.world.store.add(key, 1)
        barrier()
        k.equal(k.world.store.add(key, 0), members, "the ranks that had come when the barrier opened")


@script("10.1", "barrier/waits_for_all", (1, 2, 3, 5))
def _barrier(k: Kit) -> None:
    _witnessed(k, k.size, k.dist.barrier)


@script("10.1", "barrier/async", (2, 3))
def _async(k: Kit) -> None:
    _witnessed(k, k.size, lambda: k.dist.barrier(async_op=True).wait())


@script("10.1", "barrier/of_a_part", (4, 5), group="part")
def _part(k: Kit) -> None:
    if k.rank % 2:
        _witnessed(k, k.size // 2, lambda: k.dist.barrier(group=k.group("part")))


@script("10.2", "monitored_barrier/all_come", (1, 2, 3))
def _all_come(k: Kit) -> None:
    k.equal(k.dist.monitored_barrier(), None, "the result")


@script("10.2", "monitored_barrier/names_missing_ranks", (3, 4))
def _names(k: Kit) -> None:
    """Rank 0 names the ranks that did not come: all with wait_all_ranks, else the first."""
    # A backend that torch does not offer it for refuses it here, on every rank.
    k.dist.monitored_barrier()
    for waits in (False, True):
        group = k.new_group()
        if k.rank == 0:
            pattern = ", ".join(map(str, range(1, k.size))) if waits else "[Rr]ank 1"
            with k.raises(RuntimeError, pattern):
                k.dist.monitored_barrier(group, timeout=timedelta(seconds=0.4), wait_all_ranks=waits)
        k.meet()


@script("10.2", "monitored_barrier/timeouts", (2,))
def _timeouts(k: Kit) -> None:
    barrier = k.dist.monitored_barrier
    with warnings.catch_warnings(record=True, action="always") as caught:
        barrier(timeout=5.0)
    k.check(bool(caught), "no warning for a limit that is a number")
    with k.raises(TypeError):
        barrier(timeout="5")
    barrier(timeout=None)
