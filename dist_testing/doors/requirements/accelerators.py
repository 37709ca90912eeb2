"""Requirements on GPUs and other accelerators, and helpers that count and deal them.

Counting does not create a CUDA context: torch asks NVML. So it may be done in the runner.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dist_testing.backends import any_declared
from dist_testing.doors.requirements.decision import check_count, requirement
from dist_testing.doors.requirements.platforms import is_rocm
from dist_testing.doors.requirements.worlds import world_size_in
from dist_testing.skips import TEST_SKIPS, gpus_reason

if TYPE_CHECKING:
    import torch

__all__ = [
    "DDP_RANK_DEVICES",
    "accelerator_count",
    "at_least_x_gpu",
    "evaluate_platform_supports_symm_mem",
    "init_multigpu_helper",
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_ddp_rank",
    "requires_multicast_support",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "sm_is_or_higher_than",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# A function, a method or a class.
_Test = TypeVar("_Test", bound=Callable[..., Any])

# Kinds of device on which DistributedDataParallel takes a rank for a device index.
DDP_RANK_DEVICES = ["cuda", "xpu"]
# ROCm architectures that have symmetric memory.
_ROCM_SYMM_MEM = ("gfx942", "gfx950")


def _cuda_count() -> int:
    import torch

    return torch.cuda.device_count()


def accelerator_count() -> int:
    """Accelerators of the kind that this machine has most of: CUDA or ROCm GPUs, XPUs, HPUs."""
    import torch

    counts = [_cuda_count(), torch.xpu.device_count()]
    # There only when a plugin brings it.
    if (hpu := getattr(torch, "hpu", None)) is not None:
        counts.append(hpu.device_count())
    return max(counts)


def at_least_x_gpu(x: int) -> bool:
    """Whether `x` accelerators of one kind are there."""
    return accelerator_count() >= x


def skip_if_no_gpu(func: _Function) -> _Function:
    """Skip without an accelerator, or with fewer than one per rank of the world."""

    def decide(environment: Mapping[str, str]) -> str | None:
        count = accelerator_count()
        if not count:
            return TEST_SKIPS["no_cuda"].message
        size = world_size_in(environment)
        return gpus_reason(size) if size is not None and count < size else None

    return requirement(decide)(func)


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[_Function], _Function]:
    """Skip with fewer than `x` accelerators.

    Args:
        x: How many are needed; any number.
        allow_cpu: Run on machines that have none.

    Raises:
        UsageError: If `x` is not a number.
    """
    check_count("skip_if_lt_x_gpu", x, "GPUs")

    def decide(environment: Mapping[str, str]) -> str | None:
        count = accelerator_count()
        return None if count >= x or (allow_cpu and not count) else gpus_reason(x)

    return requirement(decide)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Callable[[_Function], _Function]:
    """Skip with fewer than `x` CUDA devices if `backend` is nccl; for another backend CUDA is not looked at.

    Raises:
        UsageError: If `x` is not a number.
    """
    check_count(f"nccl_skip_if_lt_x_gpu({backend!r}, x)", x, "GPUs")
    return requirement(
        lambda environment: gpus_reason(x) if _uses_nccl(backend) and _cuda_count() < x else None,
    )


def _uses_nccl(backend: str) -> bool:
    return any_declared(backend, lambda declared: declared.uses_nccl)


def require_n_gpus_for_nccl_backend(n: int, backend: str) -> Callable[[_Function], _Function]:
    """`nccl_skip_if_lt_x_gpu` with its arguments the other way round."""
    return nccl_skip_if_lt_x_gpu(backend, n)


def requires_multicast_support() -> Callable[[_Test], _Test]:
    """Skip where the first CUDA device has no multicast (NVLink SHARP)."""
    text = "multicast support is not available"
    if not _cuda_count():
        return unittest.skip(text)

    def decide(environment: Mapping[str, str]) -> str | None:
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory

        return None if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, 0) else text

    return requirement(decide, on_rank_only=True)


def evaluate_platform_supports_symm_mem() -> bool:
    """Whether symmetric memory works here: on CUDA, and on some ROCm architectures."""
    import torch

    if not _cuda_count():
        return False
    return not is_rocm() or any(name in torch.cuda.get_device_properties(0).gcnArchName for name in _ROCM_SYMM_MEM)


def sm_is_or_higher_than(device: torch.device, major: int, minor: int) -> bool:
    """Whether a CUDA device's compute capability is at least `major`.`minor`; True for any other kind, False on ROCm.

    Args:
        device: The device.
        major: First part of the capability.
        minor: Second part.
    """
    import torch

    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (major, minor)


def requires_ddp_rank(device: str) -> bool:
    """Whether DistributedDataParallel wants the rank as the device index on this kind of device."""
    return device in DDP_RANK_DEVICES


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Which accelerator belongs to which rank: the one whose index is the rank, also if there are more of them.

    Args:
        world_size: Ranks.
        backend: Of the group; it makes no difference.

    Returns:
        Rank to the indexes of its accelerators. Empty lists if there are fewer accelerators than ranks.
    """
    count = accelerator_count()
    # As torch does: its suites count on the first index being the rank.
    each = 1 if count >= world_size else 0
    return {rank: list(range(rank * each, (rank + 1) * each)) for rank in range(world_size)}
