"""What a rank sees of its world."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_testing.rank.environment import LOOPBACK

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

__all__ = ["World", "WorldSettings"]


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """What a world is like; the same for all its ranks. Travels to them as JSON.

    Attributes:
        backend: torch's backend string.
        device: Type of the ranks' device, as torch calls it: "cpu", "cuda", "xpu".
        gpus_per_rank: GPUs of each rank; its `device` is the first of them. 0 if the library leases none; then
            the ranks take the devices of their type in turn.
        ranks_per_gpu: Ranks that share a GPU; 1 if each has its own.
        register_module: Module whose import makes torch know the backend; "" for torch's own.
        timeout_s: Limit for store and group operations, in seconds: below the case's, so that torch speaks first.
        init: Whether the default group is made before the test runs.
        binds_device: Whether `init_process_group` gets the rank's device.
    """

    backend: str
    device: str
    gpus_per_rank: int
    register_module: str
    timeout_s: float
    init: bool
    ranks_per_gpu: int = 1
    binds_device: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return asdict(self)

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> WorldSettings:
        """The other direction."""
        return cls(**settings)


class World:
    """One rank's view of the world of the running case.

    The `world` fixture gives it. The default group exists already, unless the test is marked with `init=False`, and the
    library destroys it after a pass.

    Attributes:
        rank: This rank, from 0.
        size: Ranks in the world.
        local_rank: This rank among those of its node.
        node: This rank's node, from 0.
        backend: torch's backend string, such as "nccl" or "cpu:gloo,cuda:nccl".
    """

    def __init__(
        self,
        rank: int,
        size: int,
        settings: WorldSettings,
        *,
        directory: Path,
        store_port: int,
        store_fd: int | None,
        store: Store | None = None,
        cases: int = 0,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = rank
        self.node = 0
        self.backend = settings.backend
        self._directory = directory
        self._cases = cases
        self._settings = settings
        self._store_port = store_port
        self._store_fd = store_fd
        self._barriers = 0
        if store is not None:
            self.store = store

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, {self.backend} on {self.device}>"

    @property
    def log(self) -> logging.Logger:
        """A logger that names the rank."""
        return logging.getLogger(f"dist_testing.rank{self.rank}")

    @property
    def tmp_path(self) -> Path:
        """A folder that all ranks of the case share, empty when the case begins."""
        path = self._directory / f"tmp-{self._cases}"
        path.mkdir(exist_ok=True)
        return path

    @property
    def rank_tmp_path(self) -> Path:
        """A folder of this rank alone, empty when the case begins."""
        path = self._directory / f"tmp-{self._cases}-rank-{self.rank}"
        path.mkdir(exist_ok=True)
        return path

    @property
    def device(self) -> torch.device:
        """The device of this rank's tensors."""
        import torch

        if self._settings.device == "cpu":
            return torch.device("cpu")
        if not self._settings.gpus_per_rank:
            return torch.device(self._settings.device, self.local_rank % self._device_count)
        index = self.local_rank // self._settings.ranks_per_gpu * self._settings.gpus_per_rank
        return torch.device(self._settings.device, index)

    @cached_property
    def _device_count(self) -> int:
        import torch

        return int(torch.get_device_module(self._settings.device).device_count())

    @cached_property
    def store(self) -> Store:
        """A key-value store shared by the ranks, at `MASTER_ADDR`:`MASTER_PORT`; in memory where ranks are threads.

        Rank 0 serves it on a socket that the runner bound and keeps for the case: no port is ever chosen and released.
        """
        from torch._C._distributed_c10d import TCPStore

        return TCPStore(
            LOOPBACK,
            self._store_port,
            self.size,
            is_master=self._store_fd is not None,
            timeout=self._timeout,
            # Rank 0 would wait here for ranks that a test may not want to use the store at all.
            wait_for_workers=False,
            master_listen_fd=self._store_fd,
        )

    @property
    def group(self) -> dist.ProcessGroup:
        """The default process group.

        Raises:
            ValueError: If there is none: the test is marked with `init=False` and has not made it.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise ValueError(
                f"Rank {self.rank} of {self.size} has no default group.\n"
                "The test is marked with init=False, or it destroyed the group.\n"
                "Make one first, as by init_process_group(store=world.store, rank=world.rank, world_size=world.size)."
            )
        return group

    def barrier(self) -> None:
        """Wait until every rank is here. Uses the store, so that it works without a group and on every backend.

        Raises:
            torch.distributed.DistStoreError: If a rank does not come within the world's time limit.
        """
        self._barriers += 1
        key = f"dist_testing/barrier/{self._barriers}"
        if self.store.add(f"{key}/arrived", 1) == self.size:
            self.store.set(f"{key}/open", "1")
        self.store.wait([f"{key}/open"], self._timeout)

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._settings.timeout_s)
