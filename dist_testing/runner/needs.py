"""What a case needs of the machine, checked before a rank starts: one decision, one reason."""

from __future__ import annotations

import importlib

from dist_testing.errors import GpuError
from dist_testing.gpus.devices import gpus_present, visible_gpus
from dist_testing.skips import TEST_SKIPS, gpus_reason
from dist_testing.spec import Spec

__all__ = ["missing_need"]


def missing_need(spec: Spec, world_size: int) -> str | None:
    """Why a world of this size cannot run here; None if it can.

    Args:
        spec: What the target asks for.
        world_size: Ranks of the case.
    """
    backend = spec.backend
    if (gpus := spec.gpus(world_size)) and (lack := _lacking_gpus(gpus, backend.vendor)):
        return lack

    if backend.register_module:
        try:
            importlib.import_module(backend.register_module)
        except ImportError as error:
            return f"{TEST_SKIPS['backend_unavailable'].message} ({backend.register_module}: {error})"

    import torch.distributed as dist

    if not dist.is_available():
        return TEST_SKIPS["backend_unavailable"].message
    if not dist.is_backend_available(backend.torch_backend):
        if backend.torch_backend == "nccl":
            return TEST_SKIPS["nccl"].message
        return f"{TEST_SKIPS['backend_unavailable'].message} (torch was built without {backend.torch_backend})"
    return None


def _lacking_gpus(gpus: int, vendor: str) -> str:
    """Why so many cannot be had, however long one waits; "" if they can."""
    if vendor != "nvidia":
        return f"{TEST_SKIPS['no_accelerator'].message} (GPUs by {vendor} are not looked for; nobody has tried that)"
    try:
        visible = visible_gpus(gpus_present())
    except GpuError as error:
        return f"{gpus_reason(gpus)} ({str(error).splitlines()[0]})"
    if len(visible.gpus) >= gpus:
        return ""
    return f"{gpus_reason(gpus)} (found {len(visible.gpus)}{'; ' if visible.remark else ''}{visible.remark})"
