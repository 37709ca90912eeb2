"""The start and the end of a world."""

# mypy: disable-error-code="attr-defined,import-not-found"

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore


def initialize(address: str, *, num_processes: int, process_id: int, initialization_timeout: int) -> None:
    import jax

    host, _, port = address.partition(":")
    limit = timedelta(seconds=initialization_timeout)
    jax.state.store = TCPStore(host, int(port), num_processes, is_master=process_id == 0, timeout=limit)
    jax.state.size, jax.state.rank = num_processes, process_id


def shutdown() -> None:
    import jax

    jax.wait_at_barrier("shutdown")
