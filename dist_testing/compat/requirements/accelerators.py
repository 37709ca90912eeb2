"""Requirements on the size of the world, on GPUs and on other accelerators; how many there are, and whose they are.

The count does not create a CUDA context, because torch asks NVML, so the runner may count.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

from dist_testing.compat.requirements.platforms import is_rocm, with_parentheses
from dist_testing.compat.requirements.requirement import note_required, requirement
from dist_testing.core.ground.backends import any_declared
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import TEST_SKIPS, gpus_reason

__all__ = ["at_least_x_gpu", "get_required_world_size", "init_multigpu_helper", "nccl_skip_if_lt_x_gpu"]
__all__ += ["require_n_gpus_for_nccl_backend", "requires_ddp_rank", "requires_multicast_support", "requires_world_size"]
__all__ += ["skip_if_lt_x_gpu", "skip_if_no_gpu", "skip_if_odd_worldsize", "sm_is_or_higher_than"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# A function, a method or a class.
_Test = TypeVar("_Test", bound=Callable[..., Any])

# Kinds of device on which DistributedDataParallel uses the rank as the device index.
DDP_RANK_DEVICES = ["cuda", "xpu"]
# ROCm architectures that have symmetric memory.
_ROCM_SYMM_MEM = ("gfx942", "gfx950")
# torch's name for the attribute; other harnesses read it, too.
_MARK = "_required_world_size"


def accelerator_count() -> int:
    """Return the number of accelerators: CUDA or ROCm GPUs, XPUs or HPUs, the kind of which the machine has most."""
    counts = [torch.cuda.device_count(), torch.xpu.device_count()]
    # Only a plugin adds this module.
    if (hpu := getattr(torch, "hpu", None)) is not None:
        counts.append(hpu.device_count())
    return max(counts)


def at_least_x_gpu(x: int) -> bool:
    """Return whether the machine has at least `x` accelerators of one kind, and at least one."""
    return accelerator_count() >= max(x, 1)


def skip_if_no_gpu(func: _Function) -> _Function:
    """Skip a test without an accelerator, or with fewer accelerators than ranks in the world."""

    def decide(environment: Mapping[str, str]) -> str | None:
        count = accelerator_count()
        if not count:
            return TEST_SKIPS["no_cuda"].message
        size = world_size_in(environment)
        return gpus_reason(size) if size is not None and count < size else None

    return requirement(decide, gpus=lambda size: size)(func)


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[_Function], _Function]:
    """Skip a test on a machine with fewer than `x` accelerators.

    Args:
        x: Number of accelerators that the test needs, from 0.
        allow_cpu: Whether to run the test on a machine without any accelerator; default: False.

    Raises:
        UsageError: If `x` is not such a number.
    """
    check_count("skip_if_lt_x_gpu", x, "GPUs")

    def decide(environment: Mapping[str, str]) -> str | None:
        count = accelerator_count()
        return None if count >= x or (allow_cpu and not count) else gpus_reason(x)

    return requirement(decide, gpus=lambda size: 0 if allow_cpu else x)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Callable[[_Function], _Function]:
    """Skip a test with fewer than `x` CUDA devices if `backend` is "nccl"; run it with any other backend.

    Args:
        backend: Name of the test's backend.
        x: Number of CUDA devices that the test needs, from 0.

    Raises:
        UsageError: If `x` is not such a number.
    """
    check_count(f"nccl_skip_if_lt_x_gpu({backend!r}, x)", x, "GPUs")

    def needed() -> int:
        # Late: a conftest may declare the backend.
        return x if any_declared(backend, lambda declared: declared.uses_nccl) else 0

    def decide(environment: Mapping[str, str]) -> str | None:
        return gpus_reason(x) if needed() and torch.cuda.device_count() < x else None

    return requirement(decide, gpus=lambda size: needed())


def require_n_gpus_for_nccl_backend(n: int, backend: str) -> Callable[[_Function], _Function]:
    """Do the same as `nccl_skip_if_lt_x_gpu`, with the arguments in the other order."""
    return nccl_skip_if_lt_x_gpu(backend, n)


@with_parentheses
def requires_multicast_support() -> Callable[[_Test], _Test]:
    """Skip a test or class if the first CUDA device has no multicast (NVLink SHARP)."""
    text = "multicast support is not available"
    if not torch.cuda.device_count():
        return unittest.skip(text)

    def decide(environment: Mapping[str, str]) -> str | None:
        return None if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, 0) else text

    return requirement(decide, on_rank_only=True)


def evaluate_platform_supports_symm_mem() -> bool:
    """Return whether symmetric memory works here: with CUDA, and on some ROCm architectures."""
    if not torch.cuda.device_count():
        return False
    return not is_rocm() or any(name in torch.cuda.get_device_properties(0).gcnArchName for name in _ROCM_SYMM_MEM)


def sm_is_or_higher_than(device: torch.device, major: int, minor: int) -> bool:
    """Return whether a CUDA device's compute capability is at least `major`.`minor`; always False on ROCm.

    Args:
        device: The device; True for another kind than CUDA.
        major: First part of the capability.
        minor: Second part of the capability.
    """
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (major, minor)


def requires_ddp_rank(device: str) -> bool:
    """Return whether DistributedDataParallel uses the rank as the index on a kind of device, such as "cuda"."""
    return device in DDP_RANK_DEVICES


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Return which accelerator belongs to which rank: the one with the rank's index.

    Args:
        world_size: Ranks in the world.
        backend: Has no effect; torch's function has it.

    Returns:
        Rank to the list of its accelerators' indices: one each, or none if there are fewer accelerators than ranks.
    """
    has_enough = accelerator_count() >= world_size
    # As in torch, whose suites rely on the first index being the rank.
    return {rank: [rank] if has_enough else [] for rank in range(world_size)}


def world_size_in(environment: Mapping[str, str]) -> int | None:
    """Return `WORLD_SIZE`; without it the size of the default group, which ranks that are threads have; else None."""
    given = environment.get("WORLD_SIZE", "")
    if given.isascii() and given.isdecimal():
        return int(given)
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _skip_unless(fits: Callable[[int], bool], reason: str) -> Callable[[_Function], _Function]:
    """Skip a test in a world of another size, unless `BACKEND` is mpi: mpirun chooses the size then."""

    def decide(environment: Mapping[str, str]) -> str | None:
        size = world_size_in(environment)
        may_run = size is None or fits(size) or environment.get("BACKEND", "").lower() == "mpi"
        return None if may_run else TEST_SKIPS[reason].message

    return requirement(decide)


def skip_below_world_size(minimum: int) -> Callable[[_Function], _Function]:
    """Skip a test in a world of fewer than `minimum` ranks, unless `BACKEND` is mpi: mpirun chooses the size then."""
    check_count("skip_below_world_size", minimum, "ranks")
    return _skip_unless(lambda size: size >= minimum, "small_worldsize")


def skip_if_small_worldsize(func: _Function) -> _Function:
    """Skip a test in a world of one or two ranks, where every rank is a neighbour of every other.

    With `BACKEND=mpi` it never skips.
    """
    return skip_below_world_size(3)(func)


def skip_if_odd_worldsize(func: _Function) -> _Function:
    """Skip a test in a world with an odd number of ranks, unless `BACKEND` is mpi."""
    return _skip_unless(lambda size: size % 2 == 0, "odd_worldsize")(func)


def requires_world_size(n: int) -> Callable[[_Function], _Function]:
    """Declare that a test needs a world of `n` ranks with a GPU each; skip it on a machine with fewer GPUs.

    It does not set the size: the class's `world_size` may return `get_required_world_size(self, default)`.

    Args:
        n: Ranks that the test needs.

    Raises:
        UsageError: If `n` is not a number from 0.
    """
    check_count("requires_world_size", n, "ranks")

    def decorator(func: _Function) -> _Function:
        setattr(func, _MARK, n)
        note_required(func, gpus=lambda size: n)
        found = torch.cuda.device_count()
        return unittest.skipUnless(found >= n, f"requires {n} GPUs, found {found}")(func)

    return decorator


def get_required_world_size(obj: unittest.TestCase, default: int) -> int:
    """Return the world size that `requires_world_size` declares for the test method of `obj`; else the default."""
    method = getattr(obj, obj._testMethodName, None)
    size: int = getattr(method, _MARK, default)
    return size


def check_count(decorator: str, count: object, what: str) -> None:
    """Refuse, at the import of the test file, what is not a number from 0; `what` it counts is such as "GPUs"."""
    if type(count) is not int or count < 0:
        # A function shows that the decorator was used without arguments.
        given = f"the function {count.__qualname__}" if hasattr(count, "__qualname__") else repr(count)
        raise UsageError(
            f"@{decorator}: got {given} instead of the number of {what}.\n"
            "The decorator takes the number in parentheses.\n"
            f"Write @{decorator}(2), for example."
        )
