"""What the adapter needs of JAX, on torch's store: configuration, the start and the end of a world."""

# mypy: disable-error-code="attr-defined,import-not-found"

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from jax import distributed


class _Config:
    def __init__(self) -> None:
        self.is_parsed = False
        self.visible_devices = ""

    def parse_flags_with_absl(self) -> None:
        self.is_parsed = True

    def complete_absl_config(self, flags: Any) -> None:
        assert self.is_parsed
        self.visible_devices = flags.FLAGS.values.get("jax_cuda_visible_devices", "")


class _State:
    store: TCPStore
    size = 1
    rank = 0


config = _Config()
state = _State()


def process_count() -> int:
    return state.size


def process_index() -> int:
    return state.rank


def wait_at_barrier(name: str) -> None:
    store = state.store
    if store.add(name, 1) == state.size:
        store.set(f"{name}-over", "")
    store.wait([f"{name}-over"], timedelta(seconds=60))


__all__ = ["config", "distributed", "process_count", "process_index", "wait_at_barrier"]
