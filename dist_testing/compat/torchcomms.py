"""Names for tests of the torchcomms package, which has its own backends."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed import distributed_c10d

from dist_testing.compat.classes import DEFAULT_WORLD_SIZE, MultiProcContinuousTest, common_utils
from dist_testing.compat.device import torch_backend_for
from dist_testing.compat.unknown import torchs_own
from dist_testing.core.ground.backends import any_declared

__all__ = ["TORCHCOMM_HAS_GLOO", "TORCHCOMM_HAS_NCCL", "TORCHCOMM_HAS_NCCLX", "TORCHCOMM_HAS_RCCL"]
__all__ += ["TORCHCOMM_HAS_RCCLX", "TORCHCOMM_HAS_XCCL", "C10dTorchCommsTestBase", "setup_torchcomms_pg"]


def _has(backend: str) -> bool:
    # torch has this name since 2.13.
    if not getattr(distributed_c10d, "_TORCHCOMM_AVAILABLE", False):
        return False
    import torchcomms  # type: ignore[import-not-found]

    return bool(torchcomms.is_backend_built(backend))


_IS_BUILT = {backend: _has(backend) for backend in ("gloo", "nccl", "ncclx", "rcclx", "xccl")}
# torch does not check for this backend.
_IS_BUILT["rccl"] = False

TORCHCOMM_HAS_GLOO = _IS_BUILT["gloo"]
TORCHCOMM_HAS_NCCL = _IS_BUILT["nccl"]
TORCHCOMM_HAS_NCCLX = _IS_BUILT["ncclx"]
TORCHCOMM_HAS_RCCL = _IS_BUILT["rccl"]
TORCHCOMM_HAS_RCCLX = _IS_BUILT["rcclx"]
TORCHCOMM_HAS_XCCL = _IS_BUILT["xccl"]


class C10dTorchCommsTestBase(MultiProcContinuousTest):
    """Runs tests of a backend of torchcomms on a worker pool; skips them if the backend is not built."""

    world_size = DEFAULT_WORLD_SIZE

    @staticmethod
    def backend(device: str) -> str:
        """Return the name of the backend for a kind of device."""
        return torch_backend_for(device)

    @classmethod
    def backend_str(cls) -> str:
        """Return the name of the backend for the class's device."""
        return cls.backend(cls._device_kind())

    @classmethod
    def _device_kind(cls) -> str:
        device_type: Any = cls.device_type
        return str(device_type() if callable(device_type) else device_type)

    def setUp(self) -> None:
        """Skip the test if the backend is not built."""
        self._skip_if_backend_unavailable(self._device_kind())
        super().setUp()

    def _skip_if_backend_unavailable(self, device: str) -> None:
        backend = self.backend(device)
        if not _IS_BUILT.get(backend, True):
            self.skipTest(f"torchcomms {backend} backend is not available")

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str | None) -> None:
        torch.distributed.config.use_torchcomms = True
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = str(common_utils.find_free_port())  # type: ignore[no-untyped-call]  # torch's
        os.environ["TORCHCOMM_RANK"] = str(rank)
        os.environ["TORCHCOMM_SIZE"] = str(world_size)
        os.environ["TORCHCOMM_STORE_PATH"] = str(rdvz_file)
        super()._init_pg(rank, world_size, rdvz_file)
        if not any_declared(cls.backend_str(), lambda declared: declared.device == "cpu"):
            accelerator = torch.accelerator.current_accelerator()
            assert accelerator is not None, f"{cls.backend_str()} without an accelerator"
            torch.set_default_device(torch.device(accelerator.type, rank))
            torch.accelerator.set_device_index(rank)

    def rank_to_device(self, device: str) -> dict[int, list[int]]:
        """Return each rank's device index, in a list of one; ranks take the devices in turn."""
        count = torch.get_device_module(device).device_count()
        return {rank: [rank % count] for rank in range(self.world_size)}


def setup_torchcomms_pg(*args: Any, **kwargs: Any) -> torch.distributed.ProcessGroup:
    """Call torch's own function: it makes a process group around a communicator of torchcomms."""
    group: torch.distributed.ProcessGroup = torchs_own().setup_torchcomms_pg(*args, **kwargs)
    return group
