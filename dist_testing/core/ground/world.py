"""A rank's view of its world, and the settings that the ranks of a world share."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dist_testing.core.ground.add_ons import add_ons, call_parts
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """Settings that are the same for all ranks of a world. The runner sends them to the ranks as JSON.

    Attributes:
        backend: The backend.
        timeout_s: Time limit of store and group operations, in seconds. It is below that of the case, so that torch
            reports first.
        init: Whether the library creates the default group before the test runs.
        devices: Index of each rank's device, by its local rank; empty if the ranks take the devices in turn.
    """

    backend: Backend
    timeout_s: float
    init: bool
    devices: tuple[int, ...] = ()


class AsksRunner(Protocol):
    """Brings questions to the runner, and waits for the answers."""

    def ask(self, add_on: str, payload: str, subject: str) -> str:
        """Ask the watcher of an add-on, and return its answer. `subject` begins the texts of errors."""


@dataclass(frozen=True, slots=True)
class NoRunner:
    """A rank that cannot ask the runner, and why: the cause and the way out, a line each."""

    cause: str
    way_out: str

    def refusal(self, subject: str) -> UsageError:
        """Return the error for what needs the runner. `subject` is what the user has called."""
        return UsageError(f"{subject}: not possible here.\n{self.cause}\n{self.way_out}")

    def ask(self, add_on: str, payload: str, subject: str) -> str:
        """Refuse a question to the runner."""
        raise self.refusal(subject)


class World:
    """One rank's view of the world of the running case; a test gets it from the fixture `world`.

    The default group exists before the test, unless the test is marked with `init=False`. The library destroys it after
    a pass. Add-ons give a world further attributes, by their names.

    Attributes:
        rank: This rank, from 0.
        size: Number of ranks in the world.
        local_rank: This rank among the ranks of its node, from 0.
        node: The node of this rank, from 0.
        backend: torch's backend string, such as "nccl" or "cpu:gloo,cuda:nccl".
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        settings: WorldSettings,
        *,
        directory: Path,
        store_port: int,
        store_fd: int | None,
        store: Store | None = None,
        cases: int = 0,
        runner: AsksRunner | NoRunner,
    ) -> None:
        self.rank = rank
        self.size = layout.size
        self.local_rank = layout.local_rank(rank)
        self.node = layout.group_of(rank)
        self.backend = settings.backend.torch_backend
        self._directory = directory
        self._cases = cases
        self._settings = settings
        self._timeout = timedelta(seconds=settings.timeout_s)
        self._store_port = store_port
        self._store_fd = store_fd
        self._barriers = 0
        self._layout = layout
        self._runner = runner
        if store is not None:
            self.store = store

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, {self.backend} on {self.device}>"

    @property
    def log(self) -> logging.Logger:
        """A logger whose name contains the rank, such as "dist_testing.rank0"."""
        return logging.getLogger(f"dist_testing.rank{self.rank}")

    @property
    def tmp_path(self) -> Path:
        """A folder that all ranks of the case share; empty at the start of each case."""
        path = self._directory / f"tmp-{self._cases}"
        path.mkdir(exist_ok=True)
        return path

    @property
    def rank_tmp_path(self) -> Path:
        """A folder of this rank alone; empty at the start of each case."""
        path = self._directory / f"tmp-{self._cases}-rank-{self.rank}"
        path.mkdir(exist_ok=True)
        return path

    @property
    def device(self) -> torch.device:
        """The device for this rank's tensors: the CPU, or the first GPU of the rank."""
        import torch

        if self._settings.backend.device == "cpu":
            return torch.device("cpu")
        own = self._settings.devices
        index = own[self.local_rank] if own else self.local_rank % self._device_count
        return torch.device(self._settings.backend.device, index)

    @cached_property
    def _device_count(self) -> int:
        import torch

        return int(torch.get_device_module(self._settings.backend.device).device_count())

    @cached_property
    def store(self) -> Store:
        """A key-value store that the ranks share, at `MASTER_ADDR`:`MASTER_PORT`; in memory if ranks are threads.

        Rank 0 serves it on a socket that the runner has bound and keeps for the case: no other process gets the port.
        """
        from torch._C._distributed_c10d import TCPStore

        return TCPStore(
            self._layout.address,
            self._store_port,
            self.size,
            is_master=self._store_fd is not None,
            timeout=self._timeout,
            # Otherwise rank 0 waits here for all ranks, of which some may never use the store.
            wait_for_workers=False,
            master_listen_fd=self._store_fd,
            # A store that rank 0 makes at this port, as env:// does, shares the server and does not bind the port.
            multi_tenant=True,
        )

    @property
    def group(self) -> dist.ProcessGroup:
        """The default process group.

        Raises:
            ValueError: If there is none: with `init=False` the test makes it, or the test has destroyed it.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise ValueError(
                f"Rank {self.rank} of {self.size} has no default group.\n"
                "The test is marked with init=False, or it destroyed the group.\n"
                "Make one first: init_process_group(store=world.store, rank=world.rank, world_size=world.size)."
            )
        return group

    if not TYPE_CHECKING:
        # A type checker would take every wrong name for one of an add-on.

        def __getattr__(self, name: str) -> Any:
            """Make the attribute of an add-on, at its first use."""
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            names = {add_on.name: add_on for add_on in add_ons() if add_on.on_world}
            if name not in names:
                way_out = "Correct the name, or install the add-on that brings it."
                raise AttributeError(
                    f"world.{name}: a world has no attribute of this name.\n"
                    f"Add-ons give it these: {', '.join(names) or 'none'}.\n"
                    f"{'Use world.size.' if name == 'world_size' else way_out}"
                )
            made = names[name].load("on_world")(self, self._runner, self._layout)
            setattr(self, name, made)
            return made

    def barrier(self, name: str = "") -> None:
        """Wait until every rank of the world calls it. It needs only the store, so it works without a group.

        Args:
            name: By which add-ons know the barrier, so that one can delay a rank here; "" for none.

        Raises:
            torch.distributed.DistStoreError: If a rank does not call it within the group's limit, 0.9 of the case's.
        """
        if name:
            for _ in call_parts("at_barrier", self, name):
                pass  # It has delayed this rank, or not.
        self._barriers += 1
        key = f"dist_testing/barrier/{self._barriers}"
        if self.store.add(f"{key}/arrived", 1) == self.size:
            self.store.set(f"{key}/open", "1")
        self.store.wait([f"{key}/open"], self._timeout)
