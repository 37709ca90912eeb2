"""A rank's `World`, with the methods that only the library calls, and its devices."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dist_testing.core.ground.world import NoRunner, World
from dist_testing.core.rank.groups import end_groups

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from dist_testing.core.process.launcher_messages import RankStart, WorldRequest
    from dist_testing.core.rank.reporter import RunnerClient

# Share of a device's memory that all ranks on it may allocate. Each rank's context takes some hundred MiB more.
_SHARED_MEMORY = 0.8
# Seconds for the queued work. A kernel that waits longer for a peer is no error of this rank; a test may want that.
_DEVICE_LIMIT_S = 5.0


class RankWorld(World):
    """The world that a rank's front end prepares once and gives to one case after the other."""

    # Whether the ranks run several cases; then the connection to the store of all of them.
    _is_reused = False
    _pool_store: Store

    @classmethod
    def of(
        cls, start: RankStart, store: Store | None = None, cases: int = 0, runner: RunnerClient | None = None
    ) -> RankWorld:
        """Return the world that a rank was started for. `cases` counts the cases that this process has run before.

        The ranks share the given store, or the one at the world's port. `runner` asks the runner; None if it
        cannot be asked.
        """
        request = start.request
        world = cls(
            start.rank,
            request.layout,
            request.settings,
            directory=Path(request.directory),
            store_port=request.store_port,
            store_fd=start.store_fd,
            store=store,
            cases=cases,
            runner=runner or _refusal(request),
        )
        world._is_reused = request.pool and request.store_port > 0
        return world

    @property
    def pytest_tmp_path(self) -> Path:
        """The folder of pytest's `tmp_path` fixtures on this rank. Their first use makes it."""
        return self._directory / f"tmp-{self._cases}-pytest-{self.rank}"

    def prepare(self) -> None:
        """Set the device, start the store, and make the default group if wanted. Call it before the first case."""
        backend = self._settings.backend
        if backend.register_module:
            importlib.import_module(backend.register_module)
        if backend.device != "cpu":
            import torch

            module = torch.get_device_module(backend.device)
            module.set_device(self.device)
            if (ranks := self._settings.devices.count(self.device.index)) > 1:
                # One rank must not take the memory of the others.
                module.set_per_process_memory_fraction(_SHARED_MEMORY / ranks, self.device)
        if self._store_fd is not None:
            # Serve at once, because another rank or env:// in test code may need the store first.
            _ = self.store
        if self._settings.init:
            import torch.distributed as dist

            dist.init_process_group(
                self.backend,
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
                device_id=self.device if backend.binds_device else None,
            )

        if self._is_reused:
            self._pool_store = self.store
            # A connection that a rank makes to the store later would look as if the running test had left it open.
            self.barrier()

    def begin_case(self) -> None:
        """Give the next case its own folders; in a worker pool also its own keys of the store, for its own groups."""
        self._cases += 1
        if self._is_reused:
            from torch._C._distributed_c10d import PrefixStore

            self.store, self._barriers = PrefixStore(f"case-{self._cases}/", self._pool_store), 0

    def finish(self) -> None:
        """End the remaining groups. Call it when every rank has passed."""
        end_groups()


def _refusal(request: WorldRequest) -> NoRunner:
    if request.in_process_of:
        return NoRunner(
            "The ranks are threads of one process: no rank alone can ask the runner, or be killed, stopped or cut off.",
            'Set isolation="fork", with a backend that supports it.',
        )
    return NoRunner(
        "A launcher such as torchrun or srun has started these ranks. They ask no runner, and all end when one ends.",
        "Let the library start the ranks: run the test by plain pytest, or as a Bazel target.",
    )


def finish_device_work(limit_s: float = _DEVICE_LIMIT_S) -> None:
    """Wait until this rank's devices have finished the queued work, so that its errors belong to this test.

    CUDA reports a failed kernel to the next caller. Without this call the error would be lost, or would fail the next
    case of a worker pool. After `limit_s` seconds, unfinished work goes on.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    errors: list[BaseException] = []

    def wait(device: int) -> None:
        try:
            torch.cuda.synchronize(device)
        except BaseException as error:
            errors.append(error)

    # `synchronize` takes no limit, and a busy device must not hide the error of another one.
    threads = [
        threading.Thread(target=wait, args=(device,), name="waits for the device", daemon=True)
        for device in _devices_in_use(torch)
    ]
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    if errors:
        raise errors[0]


def _devices_in_use(torch: ModuleType) -> list[int]:
    """Return the devices on which this process has a context. A wait for another device would create one there."""
    # Private, but the only query that creates no context.
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]
