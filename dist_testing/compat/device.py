"""The logic of `DistributedTestBase`: tests that are written for any kind of device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dist_testing.core.ground.backends import all_declared, default_backend, device_backend
from dist_testing.core.ground.environment import environment
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.unittest.process import MultiProcessTestCase, ProcessCase

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# torch's suites know a backend for a device that no backend here is declared for.
_UNDECLARED = {"hpu": "hccl"}


class DeviceCase(ProcessCase):
    """A `ProcessCase` that starts its ranks in `setUp`, and has helpers to make the process group for a device.

    `torch.testing._internal.common_device_type.instantiate_device_type_tests` passes the device to each test as a text
    such as "cpu" or "cuda"; a test can also name its device itself.
    """

    def setUp(self) -> None:
        """Start the ranks, in the runner, and set `WORLD_SIZE` for the time of the test."""
        super().setUp()
        self.enterContext(environment({"WORLD_SIZE": str(self.world_size)}))
        self._spawn_processes()

    def backend(self, device: str | torch.device) -> str:
        """The backend for tests on a device."""
        return torch_backend_for(str(device))

    def create_pg(self, device: str | torch.device, world_size: int | None = None) -> Any:
        """Make the default group, on a rank. For nccl and xccl, also select this rank's device as torch's default.

        Args:
            device: Device of the test, such as "cuda".
            world_size: Ranks in the group; None for all.

        Returns:
            The group. The library destroys it after the test.

        Raises:
            UsageError: If the backend needs a device per rank and the machine has none.
        """
        size = int(self.world_size if world_size is None else world_size)
        backend = self.backend(device)
        if all_declared(backend, lambda declared: declared.gpus_per_rank > 0):
            own = torch.device(torch.device(device).type, self.rank % _device_count(self.id(), device))
            torch.set_default_device(own)
            torch.accelerator.set_device_index(own)
        store = dist.FileStore(self.file_name, size)  # type: ignore[attr-defined]  # public, but not in __all__
        dist.init_process_group(backend, world_size=size, rank=self.rank, store=store)
        return dist.group.WORLD

    def rank_to_device(self, device: str | torch.device) -> dict[int, list[int]]:
        """Return each rank's device index, in a list of one. Ranks share devices in turn if there are fewer devices.

        Args:
            device: Kind of device, such as "cuda".

        Raises:
            UsageError: If the machine has no such device.
        """
        count = _device_count(self.id(), device)
        return {rank: [rank % count] for rank in range(int(self.world_size))}


def torch_backend_for(device: str) -> str:
    """The backend for tests on a device, as torch knows it; "cuda:1" is a device, too."""
    kind = device.partition(":")[0]
    declared = device_backend(kind) or default_backend()
    return _UNDECLARED.get(kind, declared.torch_backend)


def _device_count(name: str, device: str | torch.device) -> int:
    count: int = torch.get_device_module(device).device_count()
    if not count:
        raise UsageError(
            f"{name}: there is no {torch.device(device).type} device for the ranks.\n"
            "The machine has none, or a variable such as CUDA_VISIBLE_DEVICES hides it.\n"
            "Skip the test where there is none, for example by @skip_if_lt_x_gpu(1)."
        )
    return count


class DistributedTestBase(DeviceCase, MultiProcessTestCase):
    """Runs each test on fresh rank processes, for any kind of device. See `DeviceCase` for the rules."""
